// Pictures that wait to be put into a class: sent here by "Teach me", or pasted.

import { button, fill, h } from "./dom.js";
import { announce } from "./feedback.js";
import { count, waiting } from "./format.js";

let pictures = []; // of {file, url}
const watchers = new Set();

function tell() {
	for (const watcher of watchers) watcher(pictures.length);
}

export function keepWaiting(files) {
	pictures = [...pictures, ...files.map((file) => ({ file, url: URL.createObjectURL(file) }))];
	announce(`${count(pictures.length, "picture")} waiting to be put into a class.`);
	tell();
}

/* Hands over all waiting pictures. */
export function takeWaiting() {
	const files = pictures.map(({ file }) => file);
	for (const { url } of pictures) URL.revokeObjectURL(url);
	pictures = [];
	tell();
	return files;
}

/* Calls `action` with the number of waiting pictures, now and at each change; returns a function that ends that. */
export function watchWaiting(action) {
	watchers.add(action);
	action(pictures.length);
	return () => watchers.delete(action);
}

export function waitingPictures() {
	const images = h("div.thumbs");
	const text = h("p");
	const part = h("section#waiting-pictures.note", { label: "Waiting pictures", hidden: true }, h("div.row.between", text, button("Discard", takeWaiting, { class: "quiet" })), images);
	watchWaiting((number) => {
		part.hidden = !number;
		text.textContent = `${waiting(number, "picture")} to be put into a class. Begin or open a lesson, then choose the class.`;
		fill(images, pictures.map(({ file, url }) => h("img", { src: url, alt: file.name, class: "thumb" })));
	});
	return part;
}
