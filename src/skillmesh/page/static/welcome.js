// First contact: two ways to begin, and sample images to try the demo tasks on.

import { get, post } from "./api.js";
import { button, fill, h, keyedList, part, progressBar } from "./dom.js";
import { attempt, toast } from "./feedback.js";
import { isOwner, refresh, state, watch } from "./store.js";

export function welcome() {
	const teach = button("Teach something now", () => (location.hash = "#/teach"), { id: "welcome-teach", class: "main", icon: "pencil" });
	const demo = button("Look at the demo tasks", startDemo, { id: "welcome-demo", icon: "image" });
	const ways = h(
		"div.split.ways",
		h("div.card.stack", h("h2", "Teach it something"), h("p", "Name two or more things, show about twenty pictures of each, and it learns in seconds. What was learned is shared only if you say so; pictures never are."), teach),
		h("div.card.stack", h("h2", "Watch it first"), h("p", "Some small tasks are drawn and learned while you watch. Then click a picture to ask about it. You can forget the tasks afterwards."), demo),
	);
	const greeting = h("section#welcome.part", { label: "Welcome", hidden: true }, h("p.lead", "This agent can learn to tell pictures apart, but nobody has taught it anything yet."), isOwner() ? ways : null);
	const learning = demoProgress();

	watch(["agent"], () => {
		const { agent } = state;
		greeting.hidden = !agent?.first_visit;
		demo.parentElement.hidden = agent?.demo === false;
	});
	return [greeting, learning];
}

async function startDemo(event) {
	await attempt(() => post("/demo"), event.currentTarget);
	await refresh(["agent", "lessons"]);
	document.getElementById("ask-title").focus();
}

function demoProgress() {
	const list = h("ul.stack");
	const box = part("demo-progress.card", "Learning the demo tasks", list);
	const show = keyedList(list, ({ id }) => id, (lesson) => {
		const progress = progressBar(`Learning ${lesson.task}`);
		const update = ({ state: stage, progress: now }) => progress.update(stage === "done" ? { done: 1, total: 1, stage: "learned" } : (now ?? { done: 0, total: 1, stage: "waiting" }));
		return { element: h("li.demo-lesson", h("b", lesson.task), progress.element), update };
	});
	watch(["agent", "lessons"], () => {
		box.hidden = state.agent?.demo !== "learning";
		if (!box.hidden) show(state.lessons ?? []);
	});
	return box;
}

/* Test images of the demo tasks; a click asks about one. */
export function sampleImages(askAbout) {
	const grid = h("div.samples");
	const box = part("samples", "Try one of these", h("p.muted", "None of these pictures was used for teaching."), grid);
	let fetched = false;
	watch(["agent", "tasks"], async () => {
		box.hidden = state.agent?.demo !== "ready" || !state.tasks?.length;
		if (box.hidden || fetched) return;
		fetched = true;
		try {
			const { images } = await get("/demo/images");
			fill(grid, images.map((image, place) => sample(image, place + 1, askAbout)));
		} catch {
			fetched = false;
			box.hidden = true;
		}
	});
	return box;
}

function sample(image, number, askAbout) {
	const name = `Sample ${number} of ${image.task}`;
	const ask = async () => {
		try {
			const blob = await (await fetch(image.url)).blob();
			askAbout([new File([blob], `${name}.png`, { type: blob.type })]);
		} catch {
			toast("This picture could not be fetched.", "bad");
		}
	};
	return h("button", { type: "button", class: "sample", onclick: ask, label: `Ask about sample ${number} of ${image.task}` }, h("img", { src: image.url, alt: "", loading: "lazy" }));
}
