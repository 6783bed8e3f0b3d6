// The page of one lesson: its classes and pictures, then learning, then the report.

import { post, remove } from "./api.js";
import { classCard } from "./classes.js";
import { Camera, hasCamera } from "./camera.js";
import { button, chooser, field, fill, h, keyedList, progressBar, redrawn } from "./dom.js";
import { announce, attempt, confirmed, toast } from "./feedback.js";
import { asTask, dropTarget, filesOfInput, imagesOf, isZip } from "./files.js";
import { count, quoted } from "./format.js";
import { report } from "./report.js";
import { dropLesson, lessonOf, putLesson } from "./store.js";
import { addWholeTask, uploadsOf } from "./uploads.js";
import { keepWaiting } from "./waiting.js";

const EDITABLE = new Set(["draft", "failed", "cancelled", "interrupted"]);

export function lessonPage({ id }) {
  const uploads = uploadsOf(id);
  const message = h("p", { class: "note bad", id: "lesson-trouble" });
  const video = h("video", { "aria-label": "Camera picture" });
  const camera = new Camera(video);
  const cameraBox = h("div", { class: "teach-camera", hidden: true }, video, h("p", { class: "muted" }, "Hold “Hold to record” of a class."), button("Close camera", () => camera.close(), { class: "quiet" }));
  const cards = h("div", { class: "classes", id: "classes" });
  const hints = h("ul", { class: "hints", id: "hints", "aria-label": "Hints" });
  const showClasses = keyedList(cards, (one) => one.name, (one) => classCard(id, one, { uploads, camera }));
  const tray = uploadTray(uploads);
  const editor = h("div", { class: "stack wide" }, toolbar(), cameraBox, tray.element, cards, addClass(id), hints, startForm(id, uploads));
  const progress = learning(id);
  const result = outcome();
  const element = h("div", { class: "stack wide" }, h("p", { class: "row between" }, h("a", { href: "#/teach", class: "back" }, "All lessons"), button("Delete this lesson", deleteIt, { icon: "trash", class: "quiet danger", id: "delete-lesson" })), message, progress.element, result.element, editor);
  dropTarget(editor, takeAnything);
  let before;

  camera.onclose = () => {
    cameraBox.hidden = true;
    cards.classList.remove("recording");
  };

  async function openCamera(event) {
    await attempt(() => camera.open(), event.currentTarget);
    cameraBox.hidden = !camera.isOpen;
    cards.classList.toggle("recording", camera.isOpen);
    if (camera.isOpen) announce("The camera is open. Hold the record button of a class, or hold Space on it.");
  }

  function toolbar() {
    const take = (files) => takeAnything(filesOfInput(files));
    return h(
      "div",
      { class: "row", role: "group", "aria-label": "Add pictures of several classes" },
      hasCamera() && button("Use the camera", openCamera, { icon: "camera", id: "lesson-camera" }),
      chooser("Add a folder of classes", take, { icon: "folder", id: "lesson-folder", webkitdirectory: true, multiple: true }),
      chooser("Add a .zip", take, { icon: "up", id: "lesson-zip", accept: ".zip,application/zip" }),
    );
  }

  /* What was dropped beside a class: a zip, a folder of classes, or pictures that then wait for a class. */
  async function takeAnything(items) {
    const zips = items.map(({ file }) => file).filter(isZip);
    const task = asTask(items);
    if (!zips.length && !task) {
      const images = imagesOf(items);
      if (images.length) keepWaiting(images);
      else toast("Neither images nor a .zip were found there.", "bad");
      return;
    }
    await attempt(async () => {
      const known = new Set(lessonOf(id).classes.map(({ name }) => name));
      for (const name of task && !task.hasSplits ? task.classes : []) if (!known.has(name)) putLesson(await post(`/lessons/${id}/classes`, { name }));
      addWholeTask(uploads, task, zips);
    });
  }

  async function deleteIt(event) {
    const lesson = lessonOf(id);
    const text = lesson.state === "done" ? "Its pictures are deleted from this computer. The learned task stays." : "Its pictures are deleted from this computer, and nothing is learned from them.";
    if ((await confirmed({ title: `Delete the lesson ${quoted(lesson.task)}?`, text, action: "Delete" })) === null) return;
    uploads.stop();
    await attempt(async () => {
      await remove(`/lessons/${id}`);
      dropLesson(id);
      location.hash = "#/teach";
    }, event.currentTarget);
  }

  function update(lesson) {
    const editable = EDITABLE.has(lesson.state);
    if (!editable) camera.close();
    editor.hidden = !editable;
    message.hidden = lesson.state === "draft" || !editable;
    message.textContent = { failed: `Learning failed. ${lesson.error ?? ""}`, cancelled: "Learning was cancelled. The pictures are still here; you can start again.", interrupted: "Learning was interrupted, because skillmesh stopped. You can start again; finished work is kept." }[lesson.state] ?? "";
    showClasses(lesson.classes);
    fill(hints, editable ? lesson.hints.map((hint) => h("li", {}, hint)) : null);
    hints.hidden = !editable || !lesson.hints.length;
    progress.update(lesson);
    result.update(lesson);
    if (before === "learning" && lesson.state === "done") result.element.querySelector("h2")?.focus();
    before = lesson.state;
  }

  return {
    element,
    update,
    close() {
      camera.close();
      showClasses([]);
      tray.close();
    },
  };
}

function addClass(id) {
  const name = h("input", { type: "text", id: "class-name", required: true, maxlength: 200, autocomplete: "off", placeholder: "for example: chanterelle" });
  const add = h("button", { type: "submit", id: "add-class" }, "Add class");
  const submit = async (event) => {
    event.preventDefault();
    const lesson = await attempt(() => post(`/lessons/${id}/classes`, { name: name.value.trim() }), add);
    if (!lesson) return;
    announce(`Class ${quoted(name.value.trim())} added.`);
    putLesson(lesson);
    name.value = "";
    name.focus();
  };
  return h("form", { class: "add-class", onsubmit: submit }, field("New class", name), add);
}

/* Progress of uploads, what was refused, and what can be sent again. */
function uploadTray(uploads) {
  const progress = progressBar("Sending pictures");
  const stop = button("Stop", () => uploads.stop(), { class: "quiet" });
  const running = h("div", { class: "row" }, progress.element, stop);
  const problems = h("div", { class: "stack" });
  const element = h("section", { class: "note", id: "uploads", "aria-label": "Uploads", hidden: true }, running, problems);
  let wasRunning = false;
  const update = () => {
    const lost = uploads.failed.reduce((sum, { items }) => sum + items.length, 0);
    element.hidden = !uploads.running && !lost && !uploads.refused.length;
    running.hidden = !uploads.running;
    progress.update(uploads.done, uploads.total, uploads.sending || `${uploads.done} of ${count(uploads.total, "file")} sent`);
    fill(
      problems,
      lost && !uploads.running ? h("div", { class: "row between" }, h("p", { class: "bad" }, `${count(lost, "file")} not sent. ${uploads.reason}`), button("Try again", () => uploads.retry())) : null,
      uploads.refused.length ? h("details", {}, h("summary", {}, `${count(uploads.refused.length, "file")} refused`), h("ul", {}, uploads.refused.map(({ name, reason }) => h("li", {}, h("b", {}, name), `: ${reason}`)))) : null,
      (lost || uploads.refused.length) && !uploads.running ? h("div", { class: "row end" }, button("Close", () => uploads.forgetProblems(), { class: "quiet" })) : null,
    );
    if (wasRunning && !uploads.running) announce(lost ? `${count(lost, "file")} could not be sent.` : "All pictures are sent.");
    wasRunning = uploads.running;
  };
  uploads.watchers.add(update);
  update();
  return { element, close: () => uploads.watchers.delete(update) };
}

const SHARING = [
  ["shared", "Share now", "Other agents that trust you receive what was learned, never the pictures."],
  ["later", "Decide later", "It answers here only, until you share it under Tasks."],
  ["never", "Never share", "It stays on this computer."],
];

function startForm(id, uploads) {
  const choices = SHARING.map(([value, name, text]) => {
    const input = h("input", { type: "radio", name: "sharing", value, checked: value === "later" });
    return h("label", { class: "choice" }, input, h("span", {}, h("b", {}, name), h("span", { class: "muted" }, text)));
  });
  const tags = h("input", { type: "text", id: "lesson-tags", autocomplete: "off" });
  const licence = h("input", { type: "text", id: "lesson-licence", autocomplete: "off", maxlength: 200 });
  const note = h("input", { type: "text", id: "lesson-note", autocomplete: "off", maxlength: 2000 });
  const start = h("button", { type: "submit", class: "main large", id: "start-lesson" }, "Start learning");
  const form = h(
    "form",
    { class: "card stack", id: "start-form" },
    h("fieldset", {}, h("legend", {}, "Who may have what was learned?"), h("div", { class: "choices" }, choices)),
    h("details", {}, h("summary", {}, "Tags, licence, note"), h("div", { class: "stack" }, field("Tags", tags, "Separated by commas"), field("Licence", licence, "For example CC-BY-4.0"), field("Note", note))),
    h("div", { class: "row" }, start),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (uploads.running) return toast("Pictures are still being sent. Start when they have arrived.", "bad");
    const options = {
      sharing: form.elements.sharing.value,
      tags: tags.value.split(",").map((tag) => tag.trim()).filter(Boolean),
      licence: licence.value.trim() || null,
      note: note.value.trim() || null,
    };
    const lesson = await attempt(() => startLesson(id, options), start);
    if (lesson) putLesson(lesson);
  });
  return form;
}

async function startLesson(id, options) {
  try {
    return await post(`/lessons/${id}/start`, options);
  } catch (error) {
    if (error.status !== 409) throw error;
    const agreed = await confirmed({ title: "Replace the task?", text: error.message, action: "Replace" });
    return agreed === null ? null : post(`/lessons/${id}/start`, { ...options, replace: true });
  }
}

function learning(id) {
  const progress = progressBar("Learning");
  const cancel = button("Cancel", async () => {
    const lesson = await attempt(() => post(`/lessons/${id}/cancel`), cancel);
    if (lesson) putLesson(lesson);
  }, { id: "cancel-lesson" });
  const heading = h("h2", {});
  const element = h("section", { class: "card stack", id: "learning", "aria-label": "Learning", hidden: true }, heading, progress.element, h("div", { class: "row" }, cancel));
  let stage = "";
  const update = (lesson) => {
    element.hidden = lesson.state !== "learning" && lesson.state !== "waiting";
    if (element.hidden) return;
    heading.textContent = lesson.state === "waiting" ? "Waiting for its turn" : "Learning";
    const { done, total, stage: now } = lesson.progress ?? { done: 0, total: 0, stage: "" };
    progress.update(done, total, total > 1 ? `${now} · ${done} of ${total}` : now);
    if (now && now !== stage) announce(now);
    stage = now;
  };
  return { element, update };
}

function outcome() {
  const row = redrawn(h("section", { id: "outcome", "aria-label": "Result" }), (lesson) => {
    if (lesson.state !== "done") return null;
    return [
      lesson.report ? report(lesson.report) : h("p", {}, "Learned."),
      h("div", { class: "row" }, h("a", { href: "#/ask", class: "button main" }, "Ask about a picture"), lesson.task_id && h("a", { href: `#/tasks/${lesson.task_id}`, class: "button" }, "Open the task")),
    ];
  }, ({ state, report: figures, task_id }) => JSON.stringify([state, figures, task_id]));
  return row;
}
