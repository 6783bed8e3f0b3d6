// The view "Mesh": the agents, how knowledge spreads between them, and what is held back.

import { post, remove } from "./api.js";
import { button, fill, h, keyedList, part, redrawn, redrawnList } from "./dom.js";
import { attempt, confirmThen, toast } from "./feedback.js";
import { bytes, count, date, quoted, seconds, sentence, shortKey, some } from "./format.js";
import { isOwner, refresh, state, watch } from "./store.js";
import { trustPart } from "./trust.js";

const SQUARES = 240; // drawn per agent; above that, a number says the rest

export function build(section) {
	fill(section, h("h1#mesh-title", { tabindex: "-1" }, "Mesh"), meshStatus(), agents(), h("div#owner-mesh"));
	let owned = false;
	watch(["agent"], () => {
		if (!isOwner() || owned) return;
		owned = true;
		fill(section.querySelector("#owner-mesh"), quarantine(), trustPart());
	});
}

export function show() {
	refresh(["mesh", "trust", "quarantine"]);
}

function meshStatus() {
	const trouble = h("p.note.bad", { role: "alert", hidden: true });
	const words = h("p#mesh-words.lead");
	const facts = h("dl.facts");
	const sync = button("Synchronise now", async () => {
		await attempt(() => post("/mesh/sync"), sync);
		refresh(["mesh"]);
	}, { id: "mesh-sync" });
	watch(["mesh", "agent"], () => {
		const { mesh } = state;
		if (!mesh) return fill(words, "Looking for the mesh…");
		const alive = mesh.peers.filter((peer) => peer.alive).length;
		const missing = mesh.wanted ? ` ${count(mesh.wanted, "module")} on the way.` : mesh.settled && alive ? " All that they share is here." : "";
		words.textContent = (alive ? `Connected to ${count(alive, "other agent")}.` : "No other agent is connected. Agents in the same network find each other by themselves.") + missing;
		trouble.hidden = !mesh.trouble;
		if (trouble.textContent !== (mesh.trouble ?? "")) trouble.textContent = mesh.trouble ?? "";
		sync.hidden = !isOwner();
		const pairs = [["Network", mesh.network], ["Received", bytes(mesh.bytes_fetched)], ["Sent", bytes(mesh.bytes_sent)], ["Accepts modules", mesh.trust === "open" ? "of any teacher" : "of trusted teachers only"]];
		fill(facts, pairs.map(([name, value]) => h("div", h("dt", name), h("dd", value))));
	});
	return h("section.stack", { label: "State of the mesh" }, words, trouble, h("div.row.between", facts, sync));
}

function agents() {
	const grid = h("div#agents.cards");
	const show = keyedList(grid, (one) => one.agent, (one) => agentCard(one.mine));
	watch(["mesh", "tasks", "agent"], () => {
		const { mesh, agent, tasks } = state;
		if (!mesh || !agent) return;
		const mine = { mine: true, agent: mesh.key, name: mesh.name, tasks: (tasks ?? []).map(({ id, task, own }) => ({ id, name: task, own })), coming: mesh.wanted, fetching: mesh.fetching };
		show([mine, ...mesh.peers]);
	});
	return part("agents-part", "Agents", grid);
}

/* One agent with a square per task. Squares keep their element, so only new ones are shown to arrive. */
function agentCard(mine) {
	const head = mine ? redrawn(h("div"), ownHead) : redrawn(h("div"), peerHead, ({ name, agent, alive, tasks, same }) => JSON.stringify([name, agent, alive, tasks, same]));
	const squares = h("div.squares", { role: "img" });
	const rest = h("p.muted");
	const foot = mine ? redrawn(h("div"), ownFoot) : redrawn(h("div"), peerFoot, (peer) => JSON.stringify([peerFacts(peer), peer.trusted, peer.banned]));
	let first = true;
	const show = keyedList(squares, (square) => square.id, (square) => ({ element: h("span", { class: `square ${square.kind}${first || square.kind === "coming" ? "" : " arrived"}`, title: square.name }) }));
	const update = (one) => {
		head.update(one);
		foot.update(one);
		const all = mine ? ownSquares(one) : peerSquares(one);
		show(all.slice(0, SQUARES));
		squares.setAttribute("aria-label", all.length ? count(all.length, "task") : "no tasks");
		squares.classList.toggle("many", all.length > 60);
		rest.textContent = all.length > SQUARES ? `and ${count(all.length - SQUARES, "more task")}` : "";
		element.classList.toggle("away", !mine && !one.alive);
		first = false;
	};
	const element = h("article", { class: mine ? "card agent-card mine" : "card agent-card" }, head.element, squares, rest, foot.element);
	return { element, update };
}

function ownSquares({ tasks, coming }) {
	const known = tasks.map(({ id, name, own }) => ({ id, name, kind: own ? "own" : "received" }));
	const wanted = Array.from({ length: coming }, (_, place) => ({ id: `coming ${place}`, name: "on the way", kind: "coming" }));
	return [...known, ...wanted];
}

function peerSquares({ tasks }) {
	return Array.from({ length: tasks ?? 0 }, (_, place) => ({ id: String(place), name: null, kind: "theirs" }));
}

function ownHead({ name, agent, tasks }) {
	const own = tasks.filter((task) => task.own).length;
	return [h("h3", name, h("span.badge.own", "This agent")), h("p.key", shortKey(agent)), h("p.muted", `${count(tasks.length, "task")}: ${own} taught here, ${tasks.length - own} received`)];
}

function ownFoot({ coming, fetching }) {
	if (!coming && !fetching.length) return null;
	return h("p.muted", fetching.length ? `Fetching ${fetching.map(quoted).join(", ")}` : `${count(coming, "module")} on the way`);
}

function peerHead(peer) {
	return [
		h("h3", peer.name || "Agent without a name", h("span", { class: peer.alive ? "badge done" : "badge" }, peer.alive ? "Connected" : "Away")),
		h("p.key", shortKey(peer.agent)),
		h("p.muted", peer.tasks === null ? "has not said yet what it knows" : `${count(peer.tasks, "task")}${peer.same ? ", the same as here" : ""}`),
	];
}

/* Seconds since the last word change all the time, so they are shown only for agents that are away. */
function peerFacts(peer) {
	return [
		peer.bytes_received && `${bytes(peer.bytes_received)} received from it`,
		peer.failures && count(peer.failures, "failed transfer"),
		!peer.alive && peer.heard_seconds_ago !== null && `last heard ${seconds(peer.heard_seconds_ago)} ago`,
	].filter(Boolean);
}

function peerFoot(peer) {
	const facts = peerFacts(peer);
	return [
		facts.length > 0 && h("p.muted", facts.join(" · ")),
		!peer.trusted && h("p.muted", "Its teacher is not trusted here."),
		peer.banned && h("div.row.between", h("p.bad", `Banned: ${peer.banned}`), isOwner() && button("Lift ban", (event) => liftBan(peer, event.currentTarget), { label: `Lift ban of ${peer.name || shortKey(peer.agent)}` })),
	];
}

async function liftBan(peer, control) {
	await attempt(() => remove(`/bans/${peer.agent}`), control);
	refresh(["mesh"]);
}

function quarantine() {
	const list = h("ul.stack");
	const none = h("p.muted", "Nothing is held back.");
	const show = redrawnList(list, ({ id }) => id, "li.card.row.between", heldRow);
	watch(["quarantine"], () => {
		show(state.quarantine ?? []);
		none.hidden = Boolean(state.quarantine?.length);
	});
	return part("quarantine", "Quarantine", h("p.muted", "A received module is tried before it may answer. What fails the trial, or comes from a teacher you do not trust, waits here."), none, list);
}

function heldRow(held) {
	const act = (question, action, message) => confirmThen(question, async () => {
		await action();
		toast(message);
		refresh(["quarantine", "tasks"]);
	});
	const name = quoted(held.task);
	const release = button("Release", () => act({ title: `Release ${name}?`, text: "Released, it may answer, although it was held back.", action: "Release", danger: false }, () => post(`/quarantine/${held.id}/release`), `${name} may answer now.`), { label: `Release ${held.task}` });
	const drop = button("Drop", () => act({ title: `Drop ${name}?`, text: "The module is deleted here.", action: "Drop" }, () => remove(`/quarantine/${held.id}`), `${name} is dropped.`), { label: `Drop ${held.task}`, class: "danger" });
	return [
		h("div.grow", h("h3", held.task), h("p.muted", `by ${held.teacher} · ${some(held.classes)}`), h("p", sentence(held.reason)), held.next_step && h("p.muted", sentence(held.next_step)), h("p.muted", `since ${date(held.since)}`)),
		h("div.row", release, drop),
	];
}
