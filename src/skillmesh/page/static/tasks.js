// The view "Tasks": everything the agent knows, or one task at #/tasks/ID.

import { get, post, put, remove, sendRaw } from "./api.js";
import { button, chooser, field, fill, h, keyedList, redrawn } from "./dom.js";
import { announce, attempt, confirmed, toast } from "./feedback.js";
import { dropTarget } from "./files.js";
import { bytes, count, date, percent, quoted, withLetters } from "./format.js";
import { report } from "./report.js";
import { isOwner, refresh, state, taskOf, watch } from "./store.js";
import { extendTask } from "./teach.js";

const PAGE = 60; // cards drawn at once
const CHIPS = 8; // classes named on a card
const SHARING = { shared: "Shared", later: "Not shared yet", never: "Never shared" };

const chosen = new Set(); // ids of tasks to merge
let heading;
let overview;
let single;
let shown; // the id of the task whose page is open
let drawOverview;

export function build(section) {
  heading = h("h1", { id: "tasks-title", tabindex: "-1" }, "Tasks");
  overview = h("div", { class: "stack wide" });
  single = h("div", { class: "stack wide" });
  fill(section, heading, overview, single);
  buildOverview();
  dropTarget(section, (items) => importFiles(items.map(({ file }) => file)));
  watch(["tasks", "agent"], drawOverview);
}

export function show(id) {
  shown = id;
  overview.hidden = Boolean(id);
  single.hidden = !id;
  heading.textContent = "Tasks";
  if (id) showTask(id);
}

function buildOverview() {
  const search = h("input", { type: "search", id: "task-search", placeholder: "Task, class, teacher or tag", autocomplete: "off", "aria-label": "Search tasks" });
  const found = h("p", { class: "muted", role: "status" });
  const grid = h("div", { class: "task-grid", id: "task-cards" });
  const merge = mergeBar();
  const empty = h("p", { class: "note" });
  const showCards = keyedList(grid, (task) => task.id, () => redrawn(h("article", { class: "card task" }), taskCard, (task) => JSON.stringify([task, isOwner()])));
  let limit = PAGE;
  const more = button("Show more", () => {
    limit += PAGE;
    drawOverview();
  }, { id: "more-tasks" });

  drawOverview = () => {
    const tasks = state.tasks ?? [];
    for (const id of [...chosen]) if (!taskOf(id)) chosen.delete(id);
    const words = search.value.trim().toLowerCase();
    const matches = tasks.filter((task) => matchesWords(task, words)).sort((a, b) => b.created.localeCompare(a.created));
    showCards(matches.slice(0, limit));
    more.hidden = matches.length <= limit;
    found.textContent = words ? `${count(matches.length, "task")} found` : count(tasks.length, "task");
    empty.hidden = Boolean(tasks.length) || !state.tasks;
    empty.textContent = isOwner() ? "No task yet. Teach one, or import a .skill file that another agent exported." : "No task yet.";
    merge.update();
  };
  search.addEventListener("input", () => {
    limit = PAGE;
    drawOverview();
  });
  const take = chooser("Import .skill", importFiles, { id: "import-skill", icon: "up", accept: ".skill", multiple: true });
  fill(overview, h("div", { class: "row between" }, h("div", { class: "search" }, search), found, isOwner() && take), merge.element, empty, grid, h("div", { class: "row center" }, more));
}

function matchesWords(task, words) {
  if (!words) return true;
  return [task.task, task.teacher, ...task.tags, ...task.classes.map(({ name }) => name)].some((text) => text?.toLowerCase().includes(words));
}

export function originOf(task) {
  if (task.merged) return `Merged from ${count(task.merged.parts.length, "task")}`;
  if (task.composed_of?.length) return `Composed of ${task.composed_of.map(quoted).join(", ")}`;
  return task.own ? "Taught here" : `Received from ${task.teacher}`;
}

function facts(task) {
  return h(
    "dl",
    { class: "facts" },
    fact("Accuracy", percent(task.accuracy)),
    fact("Size", bytes(task.bytes)),
    fact("Version", String(task.version)),
    fact("Made", date(task.created)),
    task.licence && fact("Licence", task.licence),
  );
}

const fact = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));

function classChips(task, most) {
  const chips = task.classes.slice(0, most).map(({ name, images }) => h("li", { class: "chip" }, name, images ? h("span", { class: "muted", title: count(images, "image") }, ` ${images}`) : null));
  const rest = task.classes.length - chips.length;
  return h("ul", { class: "chips", "aria-label": "Classes" }, chips, rest > 0 ? h("li", { class: "chip plain-chip" }, `${rest} more`) : null);
}

function taskCard(task) {
  const name = withLetters(task.task, task.odd_letters);
  const select = h("input", { type: "checkbox", "aria-label": `Choose ${task.task} for a merge`, checked: chosen.has(task.id), data: { focus: "choose" }, onchange: () => (select.checked ? chosen.add(task.id) : chosen.delete(task.id), drawOverview()) });
  return [
    h("div", { class: "row between top-aligned" }, h("h2", {}, h("a", { href: `#/tasks/${encodeURIComponent(task.id)}`, data: { focus: "open" } }, name)), isOwner() && select),
    origin(task),
    classChips(task, CHIPS),
    facts(task),
    task.tags.length ? h("p", { class: "muted" }, task.tags.map((tag) => `#${tag}`).join(" ")) : null,
    isOwner() && task.sharing && sharingChoice(task),
    isOwner() && actions(task),
  ];
}

function origin(task) {
  return h("p", { class: "muted" }, task.own && h("span", { class: "badge own" }, "Yours"), originOf(task));
}

function sharingChoice(task) {
  const select = h("select", { "aria-label": `Sharing of ${task.task}`, data: { focus: "sharing" } }, Object.entries(SHARING).map(([value, text]) => h("option", { value, selected: value === task.sharing }, text)));
  select.addEventListener("change", async () => {
    const changed = await attempt(() => put(`/tasks/${task.id}/sharing`, { sharing: select.value }), select);
    if (!changed) select.value = task.sharing;
    else announce(`${task.task}: ${SHARING[changed.sharing]}.`);
    refresh(["tasks"]);
  });
  return h("div", { class: `sharing ${task.sharing}` }, select);
}

function actions(task) {
  const named = (verb) => ({ "aria-label": `${verb} ${task.task}`, class: "quiet", data: { focus: verb } });
  return h(
    "div",
    { class: "row actions" },
    task.own && !task.merged && button("Extend", (event) => extendTask(task.task, event.currentTarget), named("Extend")),
    !task.merged && h("a", { href: `/api/v1/modules/${encodeURIComponent(task.id)}`, download: "", class: "button quiet", "aria-label": `Export ${task.task}`, data: { focus: "Export" } }, "Export"),
    task.own && task.sharing === "shared" && !task.merged && button("Withdraw", () => withdraw(task), named("Withdraw")),
    task.merged ? button("Undo merge", () => undoMerge(task), named("Undo merge of")) : button("Forget", () => forget(task), named("Forget")),
  );
}

async function afterLoss(message) {
  toast(message);
  await refresh(["tasks", "agent"]);
  if (shown) location.hash = "#/tasks";
  else heading.focus();
}

async function forget(task) {
  const text = task.own ? "Its module is deleted from this agent. Agents that already hold it keep it. Export it first if you may want it back." : "Its module is deleted from this agent.";
  if ((await confirmed({ title: `Forget ${quoted(task.task)}?`, text, action: "Forget" })) === null) return;
  await attempt(async () => {
    await remove(`/tasks/${task.id}`);
    await afterLoss(`${quoted(task.task)} is forgotten.`);
  });
}

async function withdraw(task) {
  const reason = await confirmed({ title: `Withdraw ${quoted(task.task)}?`, text: "Every agent that holds this module is told to stop answering with it. This cannot be taken back.", action: "Withdraw", input: { label: "Reason (optional, other agents see it)" } });
  if (reason === null) return;
  await attempt(async () => {
    await post(`/tasks/${task.id}/withdraw`, reason ? { reason } : {});
    await afterLoss(`${quoted(task.task)} is withdrawn.`);
  });
}

async function undoMerge(task) {
  if ((await confirmed({ title: `Undo the merge ${quoted(task.task)}?`, text: "The tasks it was made of answer on their own again.", action: "Undo merge" })) === null) return;
  await attempt(async () => {
    await remove(`/merges/${task.id}`);
    await afterLoss("The merge is undone.");
  });
}

function mergeBar() {
  const text = h("p", {});
  const name = h("input", { type: "text", id: "merge-name", maxlength: 200, autocomplete: "off", placeholder: "as the first task" });
  const merge = h("button", { type: "submit", class: "main", id: "merge" }, "Merge");
  const clear = button("Clear choice", () => {
    chosen.clear();
    for (const box of document.querySelectorAll("#task-cards input[type=checkbox]")) box.checked = false;
    drawOverview();
    heading.focus();
  }, { class: "quiet" });
  const element = h("form", { class: "note row between", id: "merge-bar", "aria-label": "Merge tasks", hidden: true }, text, field("Name of the merged task", name), h("div", { class: "row" }, clear, merge));
  element.addEventListener("submit", async (event) => {
    event.preventDefault();
    const merged = await attempt(() => post("/merges", { tasks: [...chosen], name: name.value.trim() || null }), merge);
    if (!merged) return;
    name.value = "";
    toast(`${quoted(merged.task)} now answers with what ${count(chosen.size, "task")} know.`);
    clear.click();
    refresh(["tasks"]);
  });
  const update = () => {
    element.hidden = !chosen.size;
    merge.disabled = chosen.size < 2;
    text.textContent = chosen.size < 2 ? "One task chosen. Choose another one to merge it with." : `${chosen.size} tasks chosen`;
  };
  return { element, update };
}

async function importFiles(files) {
  if (!isOwner()) return;
  for (const file of files) {
    const task = await attempt(async () => {
      try {
        return await sendRaw("PUT", "/modules", file);
      } catch (error) {
        throw new Error(`${file.name}: ${error.message}`);
      }
    });
    if (task) toast(`${quoted(task.task)} is imported.`);
  }
  refresh(["tasks", "agent", "quarantine"]);
}

/* The page of one task, with the report if the agent taught it. */
async function showTask(id) {
  fill(single, h("p", { class: "waiting" }, "Loading…"));
  let task;
  try {
    task = await get(`/tasks/${encodeURIComponent(id)}`);
  } catch (error) {
    fill(single, back(), h("p", { class: "note bad" }, error.message));
    return;
  }
  if (shown !== id) return;
  heading.textContent = withLetters(task.task, task.odd_letters);
  document.title = `${task.task} – skillmesh`;
  fill(
    single,
    back(),
    h(
      "div",
      { class: "card stack task" },
      origin(task),
      task.note && h("p", {}, task.note),
      facts(task),
      h("p", { class: "muted" }, accuracyWords(task)),
      task.tags.length ? h("p", { class: "muted" }, task.tags.map((tag) => `#${tag}`).join(" ")) : null,
      h("h2", {}, count(task.classes.length, "class", "classes")),
      classChips(task, Infinity),
      isOwner() && task.sharing && sharingChoice(task),
      isOwner() && actions(task),
    ),
    task.report ? report(task.report) : null,
  );
}

function accuracyWords(task) {
  if (!task.validation_images) return "Its accuracy was not measured.";
  return `Accuracy as measured ${task.own ? "here" : "by its teacher"} on ${count(task.validation_images, "validation image")}.`;
}

function back() {
  return h("p", {}, h("a", { href: "#/tasks", class: "back" }, "All tasks"));
}
