// One picture and what the agent says about it.

import { bar, button, fill, h } from "./dom.js";
import { correctionForm } from "./correct.js";
import { count, percent, withLetters } from "./format.js";
import { isOwner, state } from "./store.js";
import { teachWith } from "./teach.js";

/* Returns the card of a file: {element, file, answer(answer), fail(error), words(), remove()}.
   `again` asks once more about a list of cards; `drop` takes the card away. */
export function answerCard(file, { again, drop }) {
	const url = URL.createObjectURL(file);
	const body = h("div.answer-body", h("p.waiting", "Looking…"));
	const picture = h("img", { src: url, alt: file.name, decoding: "async", onerror: () => picture.replaceWith(h("p.muted", file.name)) });
	const close = button("", () => drop(card), { icon: "close", label: `Remove ${file.name}`, class: "corner" });
	const element = h("article.answer", { label: file.name, data: { state: "waiting" } }, h("div.picture", picture), body, close);
	let words = "";

	const card = {
		element,
		file,
		words: () => words,
		remove() {
			URL.revokeObjectURL(url);
			element.remove();
		},
		answer(answer) {
			words = inWords(answer);
			element.dataset.state = kindOf(answer);
			fill(body, verdict(answer), actions(answer, file));
		},
		fail(error) {
			words = error.message;
			element.dataset.state = "error";
			const retry = button("Try again", () => {
				fill(body, h("p.waiting", "Looking…"));
				again([card]);
			});
			const teach = error.status === 409 && isOwner() && button("Teach me", () => teachWith(file), { icon: "pencil" });
			fill(body, h("p.label", "No answer"), h("p.bad", error.message), h("div.row", teach, retry));
		},
	};
	return card;
}

function kindOf(answer) {
	if (answer.error) return "error";
	if (answer.unknown) return "unknown";
	return answer.unsure ? "unsure" : "known";
}

/* What a screen reader hears. */
export function inWords(answer) {
	switch (kindOf(answer)) {
		case "error":
			return `Not readable: ${answer.error}.`;
		case "unknown":
			return "Unknown: fits no task I know.";
		case "unsure":
			return "Not sure.";
		default:
			return `${answer.label}, ${percent(answer.confidence)}.`;
	}
}

export function verdict(answer) {
	switch (kindOf(answer)) {
		case "error":
			return [h("p.label", "Not readable"), h("p.bad", answer.error)];
		case "unknown":
			return [h("p.label", "Unknown"), h("p", "Fits no task I know."), nearest(answer.guesses)];
		case "unsure":
			return [h("p.label", "Not sure"), h("p", "It may be one of these, but none is likely enough."), guesses("Guesses", answer.guesses)];
		default:
			return [
				h("p.label", answer.label),
				h("p.confidence", bar(answer.confidence, "strong"), h("span", percent(answer.confidence)), h("span.unseen", " confidence")),
				origin(answer, answer.guesses[0]),
				guesses("Alternatives", answer.guesses.slice(1), answer.task),
			];
	}
}

function origin(answer, guess) {
	const own = answer.own || guess?.teacher_key === state.agent?.key;
	const support = guess?.supported_by?.length;
	return h(
		"p.muted", "Task ",
		h("b", withLetters(answer.task, guess?.odd_letters)),
		own ? ", taught here" : [", taught by ", h("b", answer.teacher ?? "an unknown teacher")],
		support && `, supported by ${count(support, "other task")}`,
	);
}

const inTask = (guess) => h("span.muted", ` in ${withLetters(guess.task, guess.odd_letters)}`);

/* Guesses with bars. The task of a guess is named unless it is the one that is named already. */
function guesses(title, list, task) {
	const rows = list.filter(({ confidence }) => confidence >= 0.01).slice(0, 4).map((guess) => h("li", h("span", guess.label, guess.task !== task && inTask(guess)), h("span.number", percent(guess.confidence)), bar(guess.confidence)));
	return rows.length > 0 && h("div.guesses", h("h3", title), h("ul.meters", rows));
}

/* What an unknown image looks like most; there the confidences are all close to zero. */
function nearest(list) {
	return list.length > 0 && h("div.guesses", h("h3", "Nearest guesses"), h("ul.chips", list.slice(0, 4).map((guess) => h("li.chip", guess.label, inTask(guess)))));
}

function actions(answer, file) {
	if (!isOwner() || answer.error) return null;
	const row = h("div.row");
	const teach = button("Teach me", () => teachWith(file), { icon: "pencil", class: answer.unknown ? "main" : "" });
	if (answer.unknown || !answer.own || !answer.task_id) {
		fill(row, teach);
		return row;
	}
	const open = button(answer.unsure ? "It is …" : "No, this is …", () => {
		const form = correctionForm(answer, file, (message) => {
			fill(row, message ? h("p.good", message) : open);
			if (!message) open.focus();
		});
		fill(row, form);
		form.querySelector("select").focus();
	});
	fill(row, open);
	return row;
}

