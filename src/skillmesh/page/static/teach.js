// The view "Teach": the list of lessons, or one lesson at #/teach/ID.

import { post } from "./api.js";
import { chooser, field, fill, form, h, icon, keyedList, part, progressBar, redrawn, textInput } from "./dom.js";
import { attempt } from "./feedback.js";
import { dropTarget, filesOfInput, wholeTask } from "./files.js";
import { count, percent, quoted, sentence } from "./format.js";
import { lessonPage } from "./lesson.js";
import { lessonOf, putLesson, state, watch } from "./store.js";
import { addWholeTask, uploadsOf } from "./uploads.js";
import { keepWaiting, waitingPictures } from "./waiting.js";

const STATES = { draft: "Collecting pictures", waiting: "Waiting for its turn", learning: "Learning", done: "Learned", failed: "Failed", cancelled: "Cancelled", interrupted: "Interrupted" };

let heading;
let home;
let place; // where the page of one lesson goes
let page = null; // the open lesson page
let shown; // its id, or undefined for the list

export function build(section) {
	heading = h("h1#teach-title", { tabindex: "-1" });
	home = h("div.stack.wide", newLesson(), lessonList());
	place = h("div#lesson");
	fill(section, heading, waitingPictures(), home, place);
	watch(["lessons"], update);
}

export function show(id) {
	shown = id;
	page?.close();
	page = null;
	fill(place);
	home.hidden = Boolean(id);
	update();
}

export { keepWaiting as paste };

/* Opens this view with a picture that waits to be put into a class. */
export function teachWith(file) {
	keepWaiting([file]);
	location.hash = "#/teach";
}

/* Begins or returns the lesson that extends one of the agent's own tasks, and shows it. */
export async function extendTask(task, control) {
	const lesson = await attempt(() => post("/lessons", { task, extends: true }), control);
	if (lesson) openLesson(lesson);
}

function update() {
	const lesson = shown && lessonOf(shown);
	heading.textContent = lesson ? `${lesson.extends ? "Extend" : "Teach"} ${quoted(lesson.task)}` : "Teach";
	if (!lesson) {
		if (shown && state.lessons) fill(place, h("p", "This lesson is gone. ", h("a", { href: "#/teach" }, "All lessons")));
		return;
	}
	if (!page) {
		page = lessonPage(lesson);
		fill(place, page.element);
	}
	page.update(lesson);
}

function newLesson() {
	const name = textInput("task-name", { required: true, placeholder: "for example: mushrooms" });
	const start = h("button#new-lesson.main", "Begin");
	const submit = async () => {
		const lesson = await attempt(() => post("/lessons", { task: name.value.trim() }), start);
		if (!lesson) return;
		name.value = "";
		openLesson(lesson);
	};
	const take = (items) => attempt(() => beginWhole(items));
	const whole = h(
		"div#task-drop.drop.small",
		icon("folder"),
		h("p", h("b", "Pictures already sorted?"), h("br"), h("span.muted", "Drop a folder or a .zip with one folder per class.")),
		h("div.row.center", wholeChoosers("task", "Choose", take)),
	);
	dropTarget(whole, take);
	return h("div.split", form(".card.stack", submit, h("h2", "Teach a new task"), h("p.muted", "A task is a question with a few possible answers, its classes. Twenty pictures of each are a good start."), field("Name of the task", name), h("div.row", start)), whole);
}

/* Inputs for a folder of classes and for a zip. */
export function wholeChoosers(stem, verb, take) {
	const onfiles = (files) => take(filesOfInput(files));
	return [
		chooser(`${verb} a folder of classes`, onfiles, { id: `${stem}-folder`, icon: "folder", webkitdirectory: true, multiple: true }),
		chooser(`${verb} a .zip`, onfiles, { id: `${stem}-zip`, icon: "up", accept: ".zip,application/zip" }),
	];
}

function openLesson(lesson) {
	putLesson(lesson);
	location.hash = `#/teach/${lesson.id}`;
}

/* A lesson from a folder of classes or a zip. */
async function beginWhole(items) {
	const { zips, task } = wholeTask(items);
	if (!zips.length && !task) throw new Error("These pictures are not sorted into one folder per class. Name the task first, then drop them on a class.");
	const name = task?.name || zips[0]?.name.replace(/\.zip$/i, "") || "new task";
	const lesson = await post("/lessons", { task: name, classes: Object.keys(task?.classes ?? {}) });
	addWholeTask(uploadsOf(lesson.id), task, zips);
	openLesson(lesson);
}

function lessonList() {
	const list = h("ul#lessons.stack");
	const element = part("lessons-part", "Lessons", list);
	const draw = keyedList(list, ({ id }) => id, lessonRow);
	watch(["lessons"], () => {
		draw(state.lessons ?? []);
		element.hidden = !state.lessons?.length;
	});
	return element;
}

function lessonRow({ id }) {
	const progress = progressBar("Learning");
	const draw = (lesson) => {
		const facts = lesson.state === "done" && lesson.report ? `${percent(lesson.report.accuracy)} of the validation images right` : `${count(lesson.classes.length, "class", "classes")}, ${count(lesson.images, "image")}`;
		return [
			h("div", h("a.cover", { href: `#/teach/${id}` }, lesson.task), h("p.muted", lesson.extends && "extends a task · ", facts), lesson.error && h("p.bad", sentence(lesson.error))),
			lesson.progress && progress.element,
			h(`span.badge.${lesson.state}`, STATES[lesson.state]),
		];
	};
	const row = redrawn(h("li.card.lesson-row.row.between", { data: { lesson: id } }), draw, ({ progress: now, ...rest }) => JSON.stringify([rest, Boolean(now)]));
	const update = (lesson) => {
		row.update(lesson);
		progress.update(lesson.progress);
	};
	return { element: row.element, update };
}
