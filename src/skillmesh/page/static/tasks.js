// The view "Tasks": everything the agent knows, or one task at #/tasks/ID.

import { get, post, put, remove, sendRaw } from "./api.js";
import { button, chooser, field, fill, form, h, redrawnList, textInput } from "./dom.js";
import { announce, attempt, confirmThen, toast } from "./feedback.js";
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
	heading = h("h1#tasks-title", { tabindex: "-1" }, "Tasks");
	overview = h("div.stack.wide");
	single = h("div.stack.wide");
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
	const search = h("input", { type: "search", id: "task-search", placeholder: "Task, class, teacher or tag", autocomplete: "off", label: "Search tasks" });
	const found = h("p.muted", { role: "status" });
	const grid = h("div#task-cards.cards");
	const merge = mergeBar();
	const empty = h("p.note");
	const showCards = redrawnList(grid, ({ id }) => id, "article.card.task", taskCard, (task) => JSON.stringify([task, isOwner(), chosen.has(task.id)]));
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
	fill(overview, h("div.row.between", h("div.row.grow", h("div.search", search), found), isOwner() && take), merge.element, empty, grid, h("div.row.center", more));
}

function matchesWords(task, words) {
	if (!words) return true;
	return [task.task, task.teacher, ...task.tags, ...task.classes.map(({ name }) => name)].some((text) => text?.toLowerCase().includes(words));
}

function originOf(task) {
	if (task.merged) return `Merged from ${count(task.merged.parts.length, "task")}`;
	if (task.composed_of?.length) return `Composed of ${task.composed_of.map(quoted).join(", ")}`;
	return task.own ? "Taught here" : `Received from ${task.teacher}`;
}

function facts(task) {
	return h(
		"dl.facts",
		fact("Accuracy", percent(task.accuracy)),
		fact("Size", bytes(task.bytes)),
		fact("Made", date(task.created)),
		fact("Version", String(task.version)),
		fact("Validation images", String(task.validation_images)),
		task.licence && fact("Licence", task.licence),
	);
}

const fact = (name, value) => h("div", h("dt", name), h("dd", value));

function classChips(task, most) {
	const chips = task.classes.slice(0, most).map(({ name, images }) => h("li.chip", name, images ? h("span.muted", { title: count(images, "image") }, ` ${images}`) : null));
	const rest = task.classes.length - chips.length;
	return h("ul.chips", { label: "Classes" }, chips, rest > 0 ? h("li.muted", `${rest} more`) : null);
}

function taskCard(task) {
	const name = withLetters(task.task, task.odd_letters);
	const choose = h("input", { type: "checkbox", label: `Merge ${task.task}`, checked: chosen.has(task.id) });
	choose.addEventListener("change", () => {
		if (choose.checked) chosen.add(task.id);
		else chosen.delete(task.id);
		drawOverview();
	});
	return [
		h("div.row.between.head", h("h2", h("a", { href: `#/tasks/${task.id}` }, name)), isOwner() && !task.merged && h("label.pick", choose, "Merge")),
		body(task, CHIPS),
	];
}

function body(task, chips) {
	return [
		h("p.muted", task.own && isOwner() && h("span.badge.own", "Yours"), originOf(task)),
		classChips(task, chips),
		facts(task),
		task.tags.length > 0 && h("p.muted", task.tags.map((tag) => `#${tag}`).join(" ")),
		isOwner() && h("div.controls", task.sharing && sharingChoice(task), actions(task)),
	];
}

function sharingChoice(task) {
	const onchange = () => attempt(async () => {
		const sharing = select.value;
		select.value = task.sharing; // until the agent agrees
		await put(`/tasks/${task.id}/sharing`, { sharing });
		select.value = sharing;
		announce(`${task.task}: ${SHARING[sharing]}.`);
		refresh(["tasks"]);
	});
	const select = h("select", { label: `Sharing of ${task.task}`, onchange }, Object.entries(SHARING).map(([value, text]) => h("option", { value, selected: value === task.sharing }, text)));
	return select;
}

function actions(task) {
	const named = (verb) => ({ label: `${verb} ${task.task}`, class: "quiet" });
	return h(
		"div.row.actions",
		task.own && button("Extend", (event) => extendTask(task.task, event.currentTarget), named("Extend")),
		!task.merged && h("a.button.quiet", { href: `/api/v1/modules/${task.id}`, download: "", label: `Export ${task.task}` }, "Export"),
		shown && task.sharing === "shared" && button("Withdraw", () => withdraw(task), named("Withdraw")),
		task.merged ? button("Undo merge", () => undoMerge(task), named("Undo merge of")) : button("Forget", () => forget(task), named("Forget")),
	);
}

/* Asks, acts, says so, and shows what is left. */
function lose(question, action, message) {
	return confirmThen(question, async (text) => {
		await action(text);
		toast(message);
		await refresh(["tasks", "agent"]);
		if (shown) location.hash = "#/tasks";
		else heading.focus();
	});
}

function forget({ id, task, own }) {
	const text = `Its module is deleted from this agent.${own ? " Agents that already hold it keep it. Export it first if you may want it back." : ""}`;
	return lose({ title: `Forget ${quoted(task)}?`, text, action: "Forget" }, () => remove(`/tasks/${id}`), `${quoted(task)} is forgotten.`);
}

function withdraw({ id, task }) {
	const question = { title: `Withdraw ${quoted(task)}?`, text: "Every agent that holds this module is told to stop answering with it. This cannot be taken back.", action: "Withdraw", input: { label: "Reason (optional, other agents see it)" } };
	return lose(question, (reason) => post(`/tasks/${id}/withdraw`, reason ? { reason } : {}), `${quoted(task)} is withdrawn.`);
}

function undoMerge({ id, task }) {
	return lose({ title: `Undo the merge ${quoted(task)}?`, text: "The tasks it was made of answer on their own again.", action: "Undo merge" }, () => remove(`/merges/${id}`), "The merge is undone.");
}

function mergeBar() {
	const text = h("p");
	const name = textInput("merge-name", { placeholder: "as the first task" });
	const merge = h("button#merge.main", "Merge");
	const submit = async () => {
		const merged = await attempt(() => post("/merges", { tasks: [...chosen], name: name.value.trim() || null }), merge);
		if (!merged) return;
		toast(`${quoted(merged.task)} now answers with what ${count(chosen.size, "task")} know.`);
		name.value = "";
		chosen.clear();
		refresh(["tasks"]);
	};
	const element = form("#merge-bar.note.row.between", submit, text, field("Name of the merged task", name), merge);
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
		try {
			const { task } = await sendRaw("PUT", "/modules", file);
			toast(`${quoted(task)} is imported.`);
		} catch (error) {
			toast(`${file.name}: ${error.message}`, "bad");
		}
	}
	refresh(["tasks", "agent", "quarantine"]);
}

/* The page of one task, with the report if the agent taught it. */
async function showTask(id) {
	fill(single, h("p.waiting", "Loading…"));
	let task;
	try {
		task = await get(`/tasks/${encodeURIComponent(id)}`);
	} catch (error) {
		fill(single, back(), h("p.note.bad", error.message));
		return;
	}
	if (shown !== id) return;
	heading.textContent = withLetters(task.task, task.odd_letters);
	document.title = `${task.task} – skillmesh`;
	fill(single, back(), h("div.card.task", task.note && h("p", task.note), body(task, Infinity)), task.report && report(task.report));
}

const back = () => h("p", h("a.back", { href: "#/tasks" }, "All tasks"));
