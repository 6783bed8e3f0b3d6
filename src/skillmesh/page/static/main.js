// Starts the page: one view at a time, chosen by the part of the address after "#".

import { whenSignedOut } from "./api.js";
import * as ask from "./ask.js";
import { closeCamera } from "./camera.js";
import { fill, h } from "./dom.js";
import { listen } from "./events.js";
import { filesOfPaste } from "./files.js";
import { isOwner, refreshAll, state, watch } from "./store.js";
import * as mesh from "./mesh.js";
import * as tasks from "./tasks.js";
import * as teach from "./teach.js";
import { anyUploads } from "./uploads.js";

const VIEWS = { ask, teach, tasks, mesh };

const main = document.getElementById("main");
const built = {};
let current = null;
let signedOut = false;

function showView(byPerson = true) {
	if (signedOut || !state.agent) return;
	let [, name, detail] = location.hash.split("/");
	if (!(name in VIEWS) || (name === "teach" && !isOwner())) [name, detail] = ["ask", undefined];
	closeCamera();
	if (!built[name]) {
		built[name] = h("section", { id: `view-${name}`, "aria-labelledby": `${name}-title` });
		main.append(built[name]);
		VIEWS[name].build(built[name]);
	}
	for (const [other, section] of Object.entries(built)) section.hidden = other !== name;
	for (const link of document.querySelectorAll("#nav a")) {
		if (link.dataset.view === name) link.setAttribute("aria-current", "page");
		else link.removeAttribute("aria-current");
	}
	current = name;
	VIEWS[name].show(detail);
	const heading = document.getElementById(`${name}-title`);
	document.title = `${heading.textContent} – skillmesh`;
	if (byPerson) {
		window.scrollTo(0, 0);
		heading.focus({ preventScroll: true });
	}
}

function showSignedOut() {
	if (signedOut) return;
	signedOut = true;
	closeCamera();
	fill(
		main,
		h(
			"section",
			{ "aria-labelledby": "signed-out" },
			h("h1#signed-out", { tabindex: "-1" }, "Open the address that skillmesh printed"),
			h("p.lead", "This browser may not use the agent yet. The terminal in which ", h("code", "skillmesh page"), " runs shows an address that ends in ", h("code", "?token=…"), ". Open it once in this browser."),
		),
	);
	for (const id of ["nav", "connection"]) document.getElementById(id).hidden = true;
	document.title = "Not signed in – skillmesh";
	document.getElementById("signed-out").focus();
}

function showAgent() {
	const { agent } = state;
	if (!agent) return;
	fill(document.getElementById("agent"), h("span.agent-name", agent.name), !isOwner() && h("span.badge", "guest"));
	document.querySelector('#nav a[data-view="teach"]').hidden = !isOwner();
}

function passPaste(event) {
	const files = current ? filesOfPaste(event) : [];
	if (!files.length) return;
	event.preventDefault();
	VIEWS[current].paste?.(files);
}

document.getElementById("skip").addEventListener("click", (event) => {
	event.preventDefault();
	main.focus();
});
window.addEventListener("hashchange", () => showView());
window.addEventListener("beforeunload", (event) => anyUploads() && event.preventDefault());
document.addEventListener("visibilitychange", () => document.hidden && closeCamera());
whenSignedOut(showSignedOut);
for (const name of ["dragover", "drop"]) document.addEventListener(name, (event) => event.preventDefault()); // beside a target, a file would replace the page
document.addEventListener("paste", passPaste);
watch(["agent"], showAgent);
await refreshAll();
if (!signedOut) listen();
showView(false);
watch(["agent"], () => current || showView(false)); // if the agent could not be reached at first
