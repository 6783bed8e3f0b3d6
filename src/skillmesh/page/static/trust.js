// Whom the agent trusts: its own key to show, keys of others to add by hand, by camera or from an image.

import { pause, put, remove, sendRaw } from "./api.js";
import { cameraBox, hasCamera } from "./camera.js";
import { button, chooser, field, form, h, part, redrawnList, textInput } from "./dom.js";
import { announce, attempt, confirmThen, toast } from "./feedback.js";
import { count, quoted, shortKey, some } from "./format.js";
import { refresh, state, watch } from "./store.js";

const CHANGED = ["trust", "quarantine", "mesh", "tasks"]; // by trust or its end
const LOOK_EVERY = 400; // milliseconds between two frames sent while scanning

export function trustPart() {
	return part("trust", "Trust", h("div.split", ownKey(), addForm()), seenList(), trustedList());
}

function ownKey() {
	const code = h("code#own-key.whole-key");
	const copy = button("Copy key", async () => {
		const key = state.trust.mine.key;
		try {
			await navigator.clipboard.writeText(key);
			toast("The key is copied.");
		} catch {
			// Outside https a page may not write to the clipboard; selecting lets the person do it.
			getSelection().selectAllChildren(code);
			announce("The key is selected. Press Ctrl-C to copy it.");
		}
	}, { icon: "copy", id: "copy-key" });
	const qr = h("img.qr", { alt: "QR code of this agent's key", hidden: true });
	watch(["trust"], () => {
		const mine = state.trust?.mine;
		if (!mine) return;
		code.textContent = mine.key;
		const url = mine.qr_url;
		qr.hidden = !url;
		if (url && qr.getAttribute("src") !== url) qr.src = url;
	});
	return h("div.card.stack", h("h3", "This agent's key"), h("p.muted", "Others who add it trust what this agent teaches."), qr, code, h("div.row", copy));
}

function addForm() {
	const key = textInput("trust-key", { required: true, pattern: "\\s*[0-9a-fA-F]{64}\\s*", spellcheck: "false", title: "64 digits from 0-9 and a-f" });
	const name = textInput("trust-name");
	const add = h("button#trust-add.main", "Trust this teacher");
	const scan = scanner((found) => {
		key.value = found.key;
		name.value = found.name ?? "";
		announce(`Found the key of ${found.name || "an agent"}. Check it, then trust it.`);
		add.focus();
	});
	const submit = async () => {
		if (await trust(key.value.trim().toLowerCase(), name.value.trim(), add)) key.value = name.value = "";
	};
	return form(
		".card.stack",
		submit,
		h("h3", "Trust another teacher"),
		h("p.muted", "Compare the key with its owner, best in person. What a trusted teacher shares may answer here after a trial."),
		field("Key", key, "64 digits from 0-9 and a-f"),
		field("Name", name, "Yours for this teacher; optional"),
		scan.element,
		h("div.row", add, scan.open, scan.file),
	);
}

function scanner(onfound) {
	const { camera, element } = cameraBox("Hold the other agent's QR code before the camera.");

	async function look() {
		await attempt(() => camera.open(), open);
		element.hidden = !camera.isOpen;
		while (camera.isOpen) {
			const frame = await camera.frame();
			try {
				const found = frame && (await sendRaw("POST", "/trust/scan", frame));
				if (found && camera.isOpen) {
					camera.close();
					onfound(found);
					return;
				}
			} catch (error) {
				// 422 means that this frame shows no readable code yet.
				if (error.status !== 422 && !error.passing) {
					camera.close();
					toast(error.message, "bad");
					return;
				}
			}
			await pause(LOOK_EVERY);
		}
	}

	async function read([image]) {
		const found = await attempt(() => sendRaw("POST", "/trust/scan", image));
		if (found) onfound(found);
	}

	const open = hasCamera() && button("Scan a QR code", look, { icon: "camera", id: "trust-scan" });
	const file = chooser("QR code from an image", read, { icon: "image", id: "trust-image", accept: "image/*" });
	return { element, open, file };
}

async function trust(key, name, control) {
	return attempt(async () => {
		await put(`/trust/${key}`, { name });
		toast(`${name || shortKey(key)} is trusted now.`);
		refresh(CHANGED);
		return true;
	}, control);
}

function seenList() {
	const list = h("ul.stack");
	const element = h("div.stack", h("h3", "Seen, not trusted"), list);
	const show = redrawnList(list, (seen) => seen.teacher_key, "li.card.row.between", seenRow);
	watch(["trust"], () => {
		show(state.trust?.seen ?? []);
		element.hidden = !state.trust?.seen?.length;
	});
	return element;
}

function seenRow({ teacher, teacher_key: key, tasks }) {
	const who = teacher || shortKey(key);
	const trustIt = () => confirmThen({ title: `Trust ${quoted(who)}?`, text: `Anyone can use a name. Compare the key with its owner: ${key}`, action: "Trust", danger: false, input: { label: "Your name for this teacher", value: teacher } }, (name) => trust(key, name));
	return [h("div.grow", h("b", who), h("p.key", shortKey(key)), h("p.muted", `teaches ${some(tasks.map(quoted))}`)), button("Trust", trustIt, { label: `Trust ${who}` })];
}

function trustedList() {
	const list = h("ul.stack");
	const none = h("p.muted", "No other teacher is trusted yet.");
	const show = redrawnList(list, (one) => one.key, "li.card.row.between", trustedRow);
	watch(["trust"], () => {
		show(state.trust?.trusted ?? []);
		none.hidden = Boolean(state.trust?.trusted?.length);
	});
	return h("div.stack", h("h3", "Trusted teachers"), none, list);
}

function trustedRow({ key, name }) {
	const who = name || shortKey(key);
	const question = { title: `Stop trusting ${quoted(who)}?`, text: "The modules of this teacher move to quarantine and no longer answer.", action: "Stop trusting" };
	const end = async () => {
		const { moved } = await remove(`/trust/${key}`);
		toast(`${count(moved, "module")} moved to quarantine.`);
		refresh(CHANGED);
	};
	const stop = button("Stop trusting", () => confirmThen(question, end), { label: `Stop trusting ${who}`, class: "quiet danger" });
	return [h("div.grow", h("b", who), h("p.key", shortKey(key))), stop];
}
