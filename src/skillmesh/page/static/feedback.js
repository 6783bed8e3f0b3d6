// Tells the person what happened: messages, announcements for screen readers, and questions before something is lost.

import { button, field, fill, form, h, textInput } from "./dom.js";

const SHOWN_FOR = 7000;

/* For screen readers only. The text is cleared first, so that the same sentence is read twice. */
export function announce(text, urgent = false) {
	const region = document.getElementById(urgent ? "urgent" : "polite");
	region.textContent = "";
	setTimeout(() => (region.textContent = text), 60);
}

export function toast(text, kind = "good") {
	const box = h("div", { class: `toast ${kind}` }, h("p", text), button("", () => box.remove(), { icon: "close", label: "Close message", class: "quiet" }));
	const toasts = document.getElementById("toasts");
	toasts.append(box);
	if (toasts.children.length > 3) toasts.firstChild.remove();
	announce(text, kind === "bad");
	setTimeout(() => box.remove(), kind === "bad" ? SHOWN_FOR * 2 : SHOWN_FOR);
}

/* Runs an action of a button: no second press while it works, and a failure is shown. Returns null after a failure. */
export async function attempt(action, control) {
	if (control?.getAttribute("aria-busy") === "true") return null;
	control?.setAttribute("aria-busy", "true");
	try {
		return await action();
	} catch (error) {
		toast(error.message, "bad");
		return null;
	} finally {
		control?.removeAttribute("aria-busy");
	}
}

/* Asks in a dialog. Resolves to null if the person says no, else to the text of the field ("" without one). */
function confirmed({ title, text, action, danger = true, input }) {
	const heading = h("h2#dialog-title", title);
	const box = h("dialog", { "aria-labelledby": "dialog-title" });
	const entry = input && textInput("dialog-input", { value: input.value });
	return new Promise((resolve) => {
		let answer = null;
		const agree = () => {
			answer = entry ? entry.value.trim() : "";
			box.close();
		};
		fill(
			box,
			form(
				"",
				agree,
				heading,
				text && h("p", text),
				entry && field(input.label, entry),
				h("div.row.end", button("Cancel", () => box.close()), h(`button.${danger ? "solid" : "main"}`, action)),
			),
		);
		box.addEventListener("close", () => {
			box.remove();
			resolve(answer);
		});
		document.body.append(box);
		box.showModal();
		if (!entry) box.querySelector("button").focus();
	});
}

/* Asks first; then acts with the text of the dialog's field. */
export async function confirmThen(question, action, control) {
	const text = await confirmed(question);
	return text === null ? null : attempt(() => action(text), control);
}
