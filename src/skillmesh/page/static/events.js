// The stream of changes from the agent, opened again whenever it breaks.

import { get } from "./api.js";
import { announce, toast } from "./feedback.js";
import { percent, quoted } from "./format.js";
import { lessonOf, putLesson, refresh, refreshAll, state } from "./store.js";

const LONGEST_WAIT = 15000;

let wait = 1000;
let lost = false;

function showLost() {
	const status = document.getElementById("connection");
	if (!lost) status.textContent = "Connection lost, trying again…";
	status.hidden = false;
	lost = true;
}

function showFound() {
	document.getElementById("connection").hidden = true;
	if (lost) announce("Connected again.");
	lost = false;
}

function takeLesson(lesson) {
	const before = lessonOf(lesson.id);
	putLesson(lesson);
	if (!before || before.state === lesson.state || state.agent.demo === "learning") return;
	const name = quoted(lesson.task);
	if (lesson.state === "done") toast(`${name} is learned${lesson.report ? `: ${percent(lesson.report.accuracy)} right` : ""}.`);
	if (lesson.state === "failed") toast(`${name} could not be learned. ${lesson.error ?? ""}`, "bad");
}

export function listen() {
	const source = new EventSource("/api/v1/events");
	source.addEventListener("hello", async () => {
		wait = 1000;
		await refreshAll();
		showFound();
	});
	source.addEventListener("changed", (event) => refresh(JSON.parse(event.data).topics));
	source.addEventListener("lesson", (event) => takeLesson(JSON.parse(event.data)));
	source.addEventListener("error", async () => {
		showLost();
		// After an HTTP error such as 503 a browser closes the stream for good; otherwise it tries again by itself.
		if (source.readyState !== EventSource.CLOSED) return;
		const answer = await get("/agent").catch((error) => error);
		if (answer.status === 401) return; // the page says that it is signed out
		setTimeout(listen, wait);
		wait = Math.min(wait * 2, LONGEST_WAIT);
	});
}
