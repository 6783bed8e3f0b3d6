// The form behind "No, this is …": keeps a picture as material for extending the task that answered.

import { imagesForm, post, upload } from "./api.js";
import { button, field, form, h, newId, textInput } from "./dom.js";
import { announce, attempt } from "./feedback.js";
import { quoted, waiting } from "./format.js";
import { putLesson, taskOf } from "./store.js";

const NEW = "\u0000new"; // no class can have this name

/* `done` gets a sentence once the correction is kept, or null if the person gives up. */
export function correctionForm(answer, file, done) {
	const task = taskOf(answer.task_id);
	const taskName = task?.task ?? answer.task ?? answer.guesses[0].task;
	const names = (task?.classes ?? answer.guesses.filter((guess) => guess.task === taskName).map((guess) => ({ name: guess.label }))).map(({ name }) => name);
	const choices = names.filter((name) => name !== answer.label);
	const select = h("select", choices.map((name) => h("option", { value: name }, name)), h("option", { value: NEW }, "Another class…"));
	const name = textInput(newId("new-class"));
	const nameField = field("Name of the new class", name);
	const follow = () => {
		nameField.hidden = select.value !== NEW;
		name.required = !nameField.hidden;
	};
	select.addEventListener("change", () => {
		follow();
		if (!nameField.hidden) name.focus();
	});
	follow();
	const keep = h("button.main", "Keep as lesson");

	const submit = async () => {
		const className = select.value === NEW ? name.value.trim() : select.value;
		if (!className) return name.focus();
		const lesson = await attempt(() => keepCorrection(taskName, className, file), keep);
		if (!lesson) return;
		const message = `Kept as ${quoted(className)}. ${waiting(lesson.images, "correction")} for ${quoted(taskName)}.`;
		announce(message);
		done(message);
	};
	return form(".correction", submit, field(answer.unsure ? "It is" : "No, this is", select), nameField, h("div.row", keep, button("Cancel", () => done(null), { class: "quiet" })));
}

async function keepCorrection(taskName, className, file) {
	let lesson = await post("/lessons", { task: taskName, extends: true });
	if (!lesson.classes.some((one) => one.name === className)) lesson = await post(`/lessons/${lesson.id}/classes`, { name: className });
	const answer = await upload(`/lessons/${lesson.id}/images?class=${encodeURIComponent(className)}`, imagesForm([file]), () => {});
	putLesson(answer.lesson);
	if (answer.refused.length) throw new Error(`${answer.refused[0].name} was not kept: ${answer.refused[0].reason}`);
	return answer.lesson;
}
