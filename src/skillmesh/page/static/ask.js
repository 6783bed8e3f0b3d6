// The view "Ask": pictures in, answers out.

import { answerCard } from "./answer.js";
import { ask, post } from "./api.js";
import { accepted, batches, dropTarget, imagesOf } from "./files.js";
import { button, chooser, fill, h, icon, part, redrawnList } from "./dom.js";
import { announce, attempt, toast } from "./feedback.js";
import { count, quoted, waiting } from "./format.js";
import { cameraPanel } from "./live.js";
import { hasCamera } from "./camera.js";
import { putLesson, state, watch } from "./store.js";
import { sampleImages, welcome } from "./welcome.js";

const AT_ONCE = 8; // answers appear in groups of this size

let answers; // the element that holds the cards
let cards = [];
let camera;

export function build(section) {
	const lead = h("p.lead");
	answers = h("div#answers.cards");
	const answersPart = part("answers-part", "Answers", button("Clear answers", clearAnswers, { id: "clear-answers", class: "quiet" }), answers);
	answersPart.hidden = true;
	camera = cameraPanel(askAbout);
	const drop = dropZone();
	const heading = h("h1#ask-title", { tabindex: "-1" });
	fill(section, heading, lead, welcome(), drop, camera.element, corrections(), answersPart, sampleImages(askAbout));
	dropTarget(section, (items) => askDropped(items));
	watch(["agent", "tasks"], () => {
		const known = state.tasks?.length ?? 0;
		const first = Boolean(state.agent?.first_visit);
		heading.textContent = first ? "Hello" : "What is in this picture?";
		drop.hidden = first;
		lead.hidden = first;
		lead.textContent = known ? `This agent knows ${count(known, "task")} and says so if a picture fits none of them.` : "This agent knows no task yet.";
	});
}

export function show() {}

export function paste(files) {
	askAbout(files);
}

function dropZone() {
	const files = chooser("Choose images", askAbout, { id: "ask-files", icon: "image", main: true, multiple: true, accept: accepted() });
	const photo = hasCamera()
		? button("Use the camera", () => camera.open(), { id: "ask-camera", icon: "camera" })
		: chooser("Take a photo", askAbout, { id: "ask-photo", icon: "camera", accept: "image/*", capture: "environment" });
	return h("div#ask-drop.drop", icon("image"), h("div", h("p.drop-title", "Drop pictures here"), h("p.muted", "or paste one with Ctrl-V")), h("div.row.center", files, photo));
}

function askDropped(items) {
	const images = imagesOf(items);
	const others = items.length - images.length;
	if (others) toast(`${count(others, "file")} left out: not an image.`, "bad");
	askAbout(images);
}

/* Asks about files in small groups, one after the other, so that first answers come soon. */
async function askAbout(files) {
	if (!files.length) return;
	const added = files.map((file) => answerCard(file, { again: askGroup, drop: dropCard }));
	cards = [...added, ...cards];
	answers.prepend(...added.map((card) => card.element));
	document.getElementById("answers-part").hidden = false;
	document.getElementById("answers-part").scrollIntoView({ block: "nearest" });
	announce(files.length === 1 ? "Looking at the picture." : `Looking at ${files.length} pictures.`);
	const { images_per_ask: most, body_bytes: bytes } = state.agent.limits;
	for (const group of batches(added, Math.min(AT_ONCE, most), 0.9 * bytes)) await askGroup(group);
	announce(files.length === 1 ? added[0].words() : `${files.length} pictures answered. ${added.slice(0, 5).map((card) => card.words()).join(" ")}`);
}

async function askGroup(group) {
	try {
		const result = await ask(group.map((card) => card.file));
		group.forEach((card, place) => card.answer(result.answers[place]));
	} catch (error) {
		// One unreadable or too large image must not cost the others their answers.
		if (group.length > 1 && [413, 415, 422].includes(error.status)) for (const card of group) await askGroup([card]);
		else group.forEach((card) => card.fail(error));
	}
}

function dropCard(card) {
	cards = cards.filter((other) => other !== card);
	card.remove();
	document.getElementById("answers-part").hidden = !cards.length;
	document.getElementById("ask-title").focus({ preventScroll: true });
}

function clearAnswers() {
	for (const card of cards) card.remove();
	cards = [];
	document.getElementById("answers-part").hidden = true;
	document.getElementById("ask-title").focus();
}

/* Corrections wait in lessons that extend a task. */
function corrections() {
	const list = h("div.stack");
	const draw = redrawnList(list, ({ id }) => id, "div.note.row.between", correctionsRow);
	watch(["lessons"], () => draw((state.lessons ?? []).filter((lesson) => lesson.extends && lesson.images && lesson.state === "draft")));
	return list;
}

function correctionsRow({ id, task, images, sharing }) {
	const own = state.tasks?.find((one) => one.own && one.task === task);
	const options = { sharing: own?.sharing ?? sharing, tags: own?.tags ?? [], licence: own?.licence, note: own?.note };
	const extend = button("Extend the task now", () => attempt(async () => {
		putLesson(await post(`/lessons/${id}/start`, options));
		location.hash = `#/teach/${id}`;
	}, extend), { class: "main" });
	return [h("p", `${waiting(images, "correction")} for ${quoted(task)}.`), h("div.row", h("a", { href: `#/teach/${id}` }, "Look at them"), extend)];
}
