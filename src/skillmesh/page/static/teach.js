// The view "Teach": the list of lessons, or one lesson at #/teach/ID.

import { post } from "./api.js";
import { chooser, field, fill, h, icon, keyedList, progressBar, redrawn } from "./dom.js";
import { attempt, toast } from "./feedback.js";
import { asTask, dropTarget, filesOfInput, imagesOf, isZip } from "./files.js";
import { count, percent, quoted } from "./format.js";
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
  heading = h("h1", { id: "teach-title", tabindex: "-1" });
  home = h("div", { class: "stack wide" }, newLesson(), lessonList());
  place = h("div", { id: "lesson" });
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

export function paste(files) {
  keepWaiting(files);
}

/* Opens this view with a picture that waits to be put into a class. */
export function teachWith(file) {
  keepWaiting([file]);
  location.hash = "#/teach";
}

function update() {
  const lesson = shown && lessonOf(shown);
  heading.textContent = lesson ? `${lesson.extends ? "Extend" : "Teach"} ${quoted(lesson.task)}` : "Teach";
  if (!lesson) {
    if (shown && state.lessons) fill(place, h("p", {}, "This lesson is gone. ", h("a", { href: "#/teach" }, "All lessons")));
    return;
  }
  document.title = `${heading.textContent} – skillmesh`;
  if (!page) {
    page = lessonPage(lesson);
    fill(place, page.element);
  }
  page.update(lesson);
}

function newLesson() {
  const name = h("input", { type: "text", id: "task-name", required: true, maxlength: 200, autocomplete: "off", placeholder: "for example: mushrooms" });
  const start = h("button", { type: "submit", class: "main", id: "new-lesson" }, "Begin");
  const submit = async (event) => {
    event.preventDefault();
    const lesson = await attempt(() => post("/lessons", { task: name.value.trim() }), start);
    if (!lesson) return;
    name.value = "";
    openLesson(lesson);
  };
  const take = (items) => attempt(() => beginWhole(items));
  const whole = h(
    "div",
    { class: "drop small", id: "task-drop" },
    icon("folder"),
    h("p", {}, h("b", {}, "Pictures already sorted?"), h("br"), h("span", { class: "muted" }, "Drop a folder or a .zip with one folder per class.")),
    h("div", { class: "row center" }, chooser("Choose a folder", (files) => take(filesOfInput(files)), { id: "task-folder", icon: "folder", webkitdirectory: true, multiple: true }), chooser("Choose a .zip", (files) => take(filesOfInput(files)), { id: "task-zip", icon: "up", accept: ".zip,application/zip" })),
  );
  dropTarget(whole, take);
  return h("section", { "aria-labelledby": "new-title", class: "split" }, h("form", { class: "card", onsubmit: submit }, h("h2", { id: "new-title" }, "Teach a new task"), h("p", { class: "muted" }, "A task is a question with a few possible answers, its classes. Twenty pictures of each are a good start."), field("Name of the task", name), h("div", { class: "row" }, start)), whole);
}

function openLesson(lesson) {
  putLesson(lesson);
  location.hash = `#/teach/${lesson.id}`;
}

/* A lesson from a folder of classes or a zip. */
async function beginWhole(items) {
  const zips = items.map(({ file }) => file).filter(isZip);
  const task = asTask(items);
  if (!zips.length && !task) {
    if (!imagesOf(items).length) return toast("Neither images nor a .zip were found there.", "bad");
    return toast("These pictures are not sorted into one folder per class. Name the task first, then drop them on a class.", "bad");
  }
  const name = task?.name || zips[0]?.name.replace(/\.zip$/i, "") || "new task";
  const lesson = await post("/lessons", { task: name, classes: task && !task.hasSplits ? task.classes : [] });
  addWholeTask(uploadsOf(lesson.id), task, zips);
  openLesson(lesson);
}

function lessonList() {
  const list = h("ul", { class: "plain stack", id: "lessons" });
  const part = h("section", { "aria-labelledby": "lessons-title", hidden: true }, h("h2", { id: "lessons-title" }, "Lessons"), list);
  const show = keyedList(list, (lesson) => lesson.id, lessonRow);
  watch(["lessons"], () => {
    show(state.lessons ?? []);
    part.hidden = !state.lessons?.length;
  });
  return part;
}

function lessonRow({ id }) {
  const progress = progressBar("Learning");
  const row = redrawn(
    h("li", { class: "card lesson-row", data: { lesson: id } }),
    (lesson) => {
      const running = lesson.state === "learning" || lesson.state === "waiting";
      const facts = lesson.state === "done" && lesson.report ? `${percent(lesson.report.accuracy)} of the validation images right` : `${count(lesson.classes.length, "class", "classes")}, ${count(lesson.images, "image")}`;
      return [
        h("div", {}, h("a", { href: `#/teach/${id}`, class: "cover", data: { focus: "open" } }, lesson.task), h("p", { class: "muted" }, lesson.extends ? `extends a task · ${facts}` : facts), lesson.error && h("p", { class: "bad" }, lesson.error)),
        running ? progress.element : null,
        h("span", { class: `badge ${lesson.state}` }, STATES[lesson.state]),
      ];
    },
    ({ progress: _, ...rest }) => JSON.stringify(rest),
  );
  const update = (lesson) => {
    row.update(lesson);
    if (lesson.progress) progress.update(lesson.progress.done, lesson.progress.total, lesson.progress.stage);
  };
  return { element: row.element, update };
}

/* Begins or returns the lesson that extends one of the agent's own tasks, and shows it. */
export async function extendTask(task, control) {
  const lesson = await attempt(() => post("/lessons", { task, extends: true }), control);
  if (lesson) openLesson(lesson);
}

