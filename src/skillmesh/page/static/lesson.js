// The page of one lesson: its classes and pictures, then learning, then the report.

import { post, remove } from "./api.js";
import { cameraBox, hasCamera } from "./camera.js";
import { classCard } from "./classes.js";
import { button, field, fill, form, h, keyedList, progressBar, redrawn, textInput } from "./dom.js";
import { announce, attempt, confirmThen, toast } from "./feedback.js";
import { dropTarget, wholeTask } from "./files.js";
import { count, quoted, sentence } from "./format.js";
import { report } from "./report.js";
import { dropLesson, lessonOf, putLesson } from "./store.js";
import { wholeChoosers } from "./teach.js";
import { addWholeTask, uploadsOf } from "./uploads.js";
import { keepWaiting } from "./waiting.js";

const ENDED = {
	failed: "Learning failed.",
	cancelled: "Learning was cancelled. The pictures are still here; you can start again.",
	interrupted: "Learning was interrupted, because skillmesh stopped. You can start again; finished work is kept.",
};
const SHARING = [
	["shared", "Share now", "Agents that trust you receive what was learned, never the pictures."],
	["later", "Decide later", "It answers here only, until you share it under Tasks."],
	["never", "Never share", "It stays on this computer."],
];

export function lessonPage({ id }) {
	const uploads = uploadsOf(id);
	const message = h("p#lesson-trouble.note.bad");
	const { camera, element: cameraPart } = cameraBox("Hold “Hold to record” of a class.", () => cards.classList.remove("recording"));
	const cards = h("div#classes.cards");
	const hints = h("ul#hints.hints", { label: "Hints" });
	const showClasses = keyedList(cards, ({ name }) => name, (one) => classCard(id, one, { uploads, camera }));
	const tray = uploadTray(uploads);
	const tools = h("div.row", { role: "group", label: "Add pictures of several classes" }, hasCamera() && button("Use the camera", openCamera, { icon: "camera", id: "lesson-camera" }), wholeChoosers("lesson", "Add", takeAnything));
	const editor = h("div.stack.wide", tools, cameraPart, tray.element, cards, addClass(id), hints, startForm(id, uploads));
	const progress = learning(id);
	const result = outcome();
	const head = h("div.row.between", h("a.back", { href: "#/teach" }, "All lessons"), button("Delete this lesson", deleteIt, { icon: "trash", class: "quiet danger", id: "delete-lesson" }));
	const element = h("div.stack.wide", head, message, progress.element, result.element, editor);
	dropTarget(editor, takeAnything);
	let before;

	async function openCamera(event) {
		await attempt(() => camera.open(), event.currentTarget);
		cameraPart.hidden = !camera.isOpen;
		cards.classList.toggle("recording", camera.isOpen);
		if (camera.isOpen) announce("The camera is open. Hold the record button of a class, or hold Space on it.");
	}

	/* What was dropped beside a class: a zip, a folder of classes, or pictures that then wait for a class. */
	function takeAnything(items) {
		return attempt(async () => {
			const { zips, task, images } = wholeTask(items);
			if (!zips.length && !task) return keepWaiting(images);
			const known = new Set(lessonOf(id).classes.map(({ name }) => name));
			for (const name of Object.keys(task?.classes ?? {})) if (!known.has(name)) putLesson(await post(`/lessons/${id}/classes`, { name }));
			addWholeTask(uploads, task, zips);
		});
	}

	function deleteIt() {
		const lesson = lessonOf(id);
		const rest = lesson.state === "done" ? "The learned task stays." : "Nothing is learned from them.";
		confirmThen({ title: `Delete the lesson ${quoted(lesson.task)}?`, text: `Its pictures are deleted from this computer. ${rest}`, action: "Delete" }, async () => {
			uploads.stop();
			await remove(`/lessons/${id}`);
			dropLesson(id);
			location.hash = "#/teach";
		});
	}

	function update(lesson) {
		const editable = lesson.state === "draft" || lesson.state in ENDED;
		if (!editable) camera.close();
		editor.hidden = !editable;
		message.hidden = !(lesson.state in ENDED);
		message.textContent = `${ENDED[lesson.state]} ${lesson.state === "failed" ? sentence(lesson.error) : ""}`;
		showClasses(lesson.classes);
		fill(hints, lesson.hints.map((hint) => h("li", sentence(hint))));
		hints.hidden = !lesson.hints.length;
		progress.update(lesson);
		result.update(lesson);
		if (before === "learning" && lesson.state === "done") result.element.querySelector("h2")?.focus();
		before = lesson.state;
	}

	function close() {
		camera.close();
		showClasses([]);
		tray.close();
	}

	return { element, update, close };
}

function addClass(id) {
	const name = textInput("class-name", { required: true, placeholder: "for example: chanterelle" });
	const add = h("button#add-class", "Add class");
	const submit = async () => {
		const lesson = await attempt(() => post(`/lessons/${id}/classes`, { name: name.value.trim() }), add);
		if (!lesson) return;
		announce(`Class ${quoted(name.value.trim())} added.`);
		putLesson(lesson);
		name.value = "";
		name.focus();
	};
	return form(".add-class", submit, field("New class", name), add);
}

/* Progress of uploads, what was refused, and what can be sent again. */
function uploadTray(uploads) {
	const progress = progressBar("Sending pictures");
	const running = h("div.row", progress.element, button("Stop", () => uploads.stop(), { class: "quiet" }));
	const problems = h("div.stack");
	const element = h("section#uploads.note", { label: "Uploads" }, running, problems);
	let wasRunning = false;
	const update = () => {
		const { refused } = uploads;
		const lost = uploads.running ? 0 : uploads.failed.reduce((sum, { items }) => sum + items.length, 0);
		element.hidden = !uploads.running && !lost && !refused.length;
		running.hidden = !uploads.running;
		progress.update(uploads, uploads.sending || `${uploads.done} of ${count(uploads.total, "file")} sent`);
		fill(
			problems,
			lost && h("div.row.between", h("p.bad", `${count(lost, "file")} not sent. ${uploads.reason}`), button("Try again", () => uploads.retry())),
			refused.length && h("details", h("summary", `${count(refused.length, "file")} refused`), h("ul", refused.map(({ name, reason }) => h("li", h("b", name), `: ${reason}`)))),
			(lost || refused.length) && h("div.row.end", button("Close", () => uploads.forgetProblems(), { class: "quiet" })),
		);
		if (wasRunning && !uploads.running) announce(lost ? `${count(lost, "file")} could not be sent.` : "All pictures are sent.");
		wasRunning = uploads.running;
	};
	uploads.watchers.add(update);
	update();
	return { element, close: () => uploads.watchers.delete(update) };
}

function startForm(id, uploads) {
	const choices = SHARING.map(([value, name, text]) => h("label.choice", h("input", { type: "radio", name: "sharing", value, checked: value === "later" }), h("span", h("b", name), h("span.muted", text))));
	const [tags, licence, note] = ["tags", "licence", "note"].map((name) => textInput(`lesson-${name}`, { maxlength: 2000 }));
	const start = h("button#start-lesson.main.large", "Start learning");
	const submit = async () => {
		if (uploads.running) return toast("Pictures are still being sent. Start when they have arrived.", "bad");
		const options = {
			sharing: element.elements.sharing.value,
			tags: tags.value.split(",").map((tag) => tag.trim()).filter(Boolean),
			licence: licence.value.trim() || null,
			note: note.value.trim() || null,
		};
		const lesson = await attempt(() => startLesson(id, options), start);
		if (lesson) putLesson(lesson);
	};
	const element = form(
		"#start-form.card.stack",
		submit,
		h("fieldset", h("legend", "Who may have what was learned?"), h("div.choices", choices)),
		h("details", h("summary", "Tags, licence, note"), h("div.stack", field("Tags", tags, "Separated by commas"), field("Licence", licence, "For example CC-BY-4.0"), field("Note", note))),
		h("div.row", start),
	);
	return element;
}

async function startLesson(id, options) {
	try {
		return await post(`/lessons/${id}/start`, options);
	} catch (error) {
		if (error.status !== 409) throw error;
		return confirmThen({ title: "Replace the task?", text: error.message, action: "Replace" }, () => post(`/lessons/${id}/start`, { ...options, replace: true }));
	}
}

function learning(id) {
	const progress = progressBar("Learning");
	const cancel = button("Cancel", () => attempt(async () => putLesson(await post(`/lessons/${id}/cancel`)), cancel), { id: "cancel-lesson" });
	const heading = h("h2");
	const element = h("section#learning.card.stack", { label: "Learning" }, heading, progress.element, h("div.row", cancel));
	let stage;
	const update = (lesson) => {
		const { progress: now } = lesson;
		element.hidden = lesson.state !== "learning" && lesson.state !== "waiting";
		heading.textContent = lesson.state === "waiting" ? "Waiting for its turn" : "Learning";
		progress.update(now, now?.total > 1 ? `${now.stage} · ${now.done} of ${now.total}` : now?.stage);
		if (now && now.stage !== stage) announce(now.stage);
		stage = now?.stage;
	};
	return { element, update };
}

function outcome() {
	const draw = (lesson) =>
		lesson.state === "done" && [
			lesson.report ? report(lesson.report) : h("p", "Learned."),
			h("div.row", h("a.button.main", { href: "#/ask" }, "Ask about a picture"), lesson.task_id && h("a.button", { href: `#/tasks/${lesson.task_id}` }, "Open the task")),
		];
	return redrawn(h("section#outcome.stack.wide", { label: "Result" }), draw, ({ state, report: figures, task_id }) => JSON.stringify([state, figures, task_id]));
}
