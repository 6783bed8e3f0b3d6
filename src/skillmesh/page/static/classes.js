// One class of a lesson: its pictures, and the ways to add more.

import { get, patch, remove } from "./api.js";
import { button, chooser, fill, h } from "./dom.js";
import { announce, attempt, confirmThen, toast } from "./feedback.js";
import { accepted, dropTarget, filesOfInput, imagesOf } from "./files.js";
import { count, quoted } from "./format.js";
import { putLesson } from "./store.js";
import { takeWaiting, watchWaiting } from "./waiting.js";

const FRAME_EVERY = 150; // milliseconds while recording
const LONGEST = 640; // pixels of a recorded frame
const FIRST_THUMBS = 12;

/* A row for keyedList. A class keeps its element while it is filled, so that a held record button is never replaced. */
export function classCard(lessonId, { name, known }, { uploads, camera }) {
	const path = `/lessons/${lessonId}`;
	const query = `class=${encodeURIComponent(name)}`;
	const number = h("span.count");
	const thumbs = h("ul.thumbs", { label: `Pictures of ${name}` });
	const more = button("", () => {
		all = true;
		drawThumbs();
	}, { class: "quiet" });
	const put = button("Put it here", () => uploads.addImages(takeWaiting(), name), { class: "main", label: `Put it here, into ${name}`, hidden: true });
	const record = recordButton(name, camera, (files) => uploads.addImages(files, name));
	const element = h(
		"article.class.card",
		{ label: `Class ${name}`, data: { class: name } },
		h("div.row.between.head", h("h2", name), h("div", button("", rename, { icon: "pencil", label: `Rename ${name}`, class: "quiet" }), button("", removeIt, { icon: "trash", label: `Remove ${name}`, class: "quiet" }))),
		h("p.muted", number, known ? " · already known" : ""),
		thumbs,
		more,
		h("div.row", put, record, chooser("Images", add, { icon: "image", label: `Add images to ${name}`, multiple: true, accept: accepted() }), chooser("Folder", add, { icon: "folder", label: `Add a folder of images to ${name}`, webkitdirectory: true, multiple: true })),
	);
	dropTarget(element, (items) => addItems(items));
	const unwatch = watchWaiting((waiting) => (put.hidden = !waiting));
	let images = [];
	let shownCount = null;
	let all = false;
	let fetching = false;

	function add(files) {
		addItems(filesOfInput(files));
	}

	function addItems(items) {
		const found = imagesOf(items);
		if (found.length < items.length) toast(`${count(items.length - found.length, "file")} left out: not an image.`, "bad");
		if (found.length) uploads.addImages(found, name);
	}

	function rename() {
		const question = { title: `Rename ${quoted(name)}`, action: "Rename", danger: false, input: { label: "New name", value: name } };
		confirmThen(question, async (next) => next && next !== name && putLesson(await patch(`${path}/classes`, { name, new_name: next })));
	}

	function removeIt() {
		const text = `Its ${count(shownCount, "picture")} leave the lesson too.`;
		confirmThen({ title: `Remove ${quoted(name)}?`, text: shownCount && text, action: "Remove" }, async () => {
			putLesson(await remove(`${path}/classes?${query}`));
			document.getElementById("class-name").focus();
		});
	}

	async function removeImage(image, place) {
		const lesson = await attempt(() => remove(`${path}/images/${encodeURIComponent(image.id)}`));
		if (!lesson) return;
		announce(`${image.name} removed.`);
		images = images.filter((other) => other !== image);
		shownCount = images.length;
		drawThumbs();
		putLesson(lesson);
		(thumbs.querySelectorAll("button")[place] ?? thumbs.querySelector("button:last-child"))?.focus();
	}

	function drawThumbs() {
		const shown = all ? images : images.slice(0, FIRST_THUMBS);
		fill(thumbs, shown.map((image, place) => h("li", h("img", { src: image.url, alt: image.name, class: "thumb", loading: "lazy" }), button("", () => removeImage(image, place), { icon: "close", label: `Remove ${image.name}`, class: "thumb-remove" }))));
		more.hidden = shown.length === images.length;
		more.textContent = `Show all ${images.length}`;
	}

	/* Fetches the thumbnails anew; while pictures stream in, once per answer and not once per picture. */
	async function fetchThumbs() {
		if (fetching) return;
		fetching = true;
		try {
			let wanted;
			do {
				wanted = shownCount;
				images = wanted ? (await get(`${path}/images?${query}`)).images : [];
				drawThumbs();
			} while (wanted !== shownCount);
		} catch {
			shownCount = null; // the next change of the lesson tries again
		} finally {
			fetching = false;
		}
	}

	function update({ images: now }) {
		number.textContent = count(now, "picture");
		if (now === shownCount) return;
		shownCount = now;
		fetchThumbs();
	}

	return {
		element,
		update,
		remove() {
			unwatch();
			record.stop();
		},
	};
}

/* Records while it is held, by pointer or by Space or Enter. */
function recordButton(name, camera, onfiles) {
	const element = button("Hold to record", null, { icon: "record", class: "record", label: `Hold to record ${name}` });
	let timer = null;
	let frames = [];
	let taken = 0;

	const start = () => {
		if (timer !== null) return;
		taken = 0;
		element.classList.add("on");
		timer = setInterval(shoot, FRAME_EVERY);
		shoot();
	};
	const shoot = async () => {
		const blob = await camera.frame(LONGEST, 0.9);
		if (!blob) return;
		taken += 1;
		frames.push(new File([blob], `${name.replace(/[^\p{L}\p{N}]+/gu, "_")} ${Date.now()}.jpg`, { type: "image/jpeg" }));
		if (frames.length >= 20 || timer === null) flush();
	};
	const flush = () => {
		if (frames.length) onfiles(frames);
		frames = [];
	};
	element.stop = () => {
		if (timer === null) return;
		clearInterval(timer);
		timer = null;
		element.classList.remove("on");
		flush();
		announce(`${count(taken, "picture")} of ${name} recorded.`);
	};
	const isHoldKey = (event) => event.key === " " || event.key === "Enter";

	element.addEventListener("pointerdown", (event) => {
		element.setPointerCapture(event.pointerId);
		start();
	});
	for (const end of ["pointerup", "pointercancel", "lostpointercapture", "blur"]) element.addEventListener(end, element.stop);
	element.addEventListener("contextmenu", (event) => event.preventDefault()); // a long press on a phone
	element.addEventListener("keydown", (event) => {
		if (!isHoldKey(event)) return;
		event.preventDefault();
		if (!event.repeat) start();
	});
	element.addEventListener("keyup", (event) => isHoldKey(event) && element.stop());
	return element;
}
