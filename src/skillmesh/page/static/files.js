// Files from drops, pastes and inputs: folders are read to the end, and what is not an image is left out.

import { state } from "./store.js";

const LEARNED = /^(train|training|val|valid|validation)$/i;
const SPLITS = /^(train|training|val|valid|validation|test|testing)$/i;

function suffix(name) {
	return name.slice(name.lastIndexOf(".")).toLowerCase();
}

/* For the accept attribute of file inputs. */
export function accepted() {
	return ["image/*", ...state.agent.suffixes].join(",");
}

function isImage(file) {
	return file.type.startsWith("image/") || state.agent.suffixes.includes(suffix(file.name));
}

function isZip(file) {
	return suffix(file.name) === ".zip";
}

function isHidden(path) {
	return path.split("/").some((part) => part.startsWith(".") || part === "__MACOSX" || part === "Thumbs.db");
}

function readFile(entry) {
	return new Promise((resolve, reject) => entry.file(resolve, reject));
}

async function readFolder(entry) {
	const reader = entry.createReader();
	const found = [];
	for (;;) {
		// One call gives at most a hundred entries; an empty answer is the end.
		const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
		if (!some.length) return found;
		found.push(...some);
	}
}

async function walk(entry, prefix, found) {
	const path = prefix + entry.name;
	if (isHidden(path)) return;
	if (entry.isFile) found.push({ path, file: await readFile(entry) });
	else for (const child of await readFolder(entry)) await walk(child, `${path}/`, found);
}

/* Returns [{path, file}]. The entries are taken before the first await, because a browser empties a drop after its event. */
async function filesOfDrop(transfer) {
	const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
	if (!entries.length) return filesOfInput([...transfer.files]);
	const found = [];
	for (const entry of entries) await walk(entry, "", found);
	return found;
}

export function filesOfInput(files) {
	return files.map((file) => ({ path: file.webkitRelativePath || file.name, file })).filter(({ path }) => !isHidden(path));
}

export function imagesOf(items) {
	return items.map(({ file }) => file).filter(isImage);
}

/* Sorts a folder into classes: class/…, or train|val|test/class/…, with or without one folder around it. Test images are
   left out, as the agent does with a zip. Returns {name, classes: {class: files}}, or null if there are no such folders. */
function asTask(items) {
	let rows = items.filter(({ file }) => isImage(file)).map(({ path, file }) => ({ parts: path.split("/"), file }));
	const inside = ({ parts, file }) => ({ parts: parts.slice(1), file });
	const outer = rows[0]?.parts[0];
	const wrapped = rows.every(({ parts }) => parts.length > 2 && parts[0] === outer) && !SPLITS.test(outer);
	if (wrapped) rows = rows.map(inside);
	if (rows.some(({ parts }) => parts.length > 2 && /^train/i.test(parts[0]))) rows = rows.filter(({ parts }) => LEARNED.test(parts[0])).map(inside);
	rows = rows.filter(({ parts }) => parts.length > 1);
	const classes = Object.groupBy(rows, ({ parts }) => parts[0]);
	for (const name of Object.keys(classes)) classes[name] = classes[name].map(({ file }) => file);
	return rows.length ? { name: wrapped ? outer : "", classes } : null;
}

/* What was dropped or chosen as a whole task: its zips, its folder of classes, and its images. */
export function wholeTask(items) {
	const found = { zips: items.map(({ file }) => file).filter(isZip), task: asTask(items), images: imagesOf(items) };
	if (!found.zips.length && !found.images.length) throw new Error("Neither images nor a .zip were found there.");
	return found;
}

/* Cuts a list into pieces of at most `most` files and `mostBytes` bytes. */
export function batches(items, most, mostBytes) {
	const pieces = [];
	let piece = [];
	let size = 0;
	for (const item of items) {
		if (piece.length && (piece.length === most || size + item.file.size > mostBytes)) {
			pieces.push(piece);
			piece = [];
			size = 0;
		}
		piece.push(item);
		size += item.file.size;
	}
	if (piece.length) pieces.push(piece);
	return pieces;
}

/* Lets an element take dropped files; `onitems` gets what filesOfDrop returns. Browsers repeat "dragover" while something is
   held above, so its absence unmarks the target; of nested targets only the inner one hears it. */
export function dropTarget(element, onitems) {
	let timer;
	const unmark = () => element.classList.remove("over");
	element.addEventListener("dragover", (event) => {
		event.preventDefault();
		event.stopPropagation();
		element.classList.add("over");
		clearTimeout(timer);
		timer = setTimeout(unmark, 500);
	});
	element.addEventListener("drop", async (event) => {
		event.preventDefault();
		event.stopPropagation();
		unmark();
		const items = await filesOfDrop(event.dataTransfer);
		if (items.length) onitems(items);
	});
}

/* Pictures on the clipboard; all of them are called "image.png" there, so they get a name of their own. */
export function filesOfPaste(event) {
	return [...(event.clipboardData?.files ?? [])].filter(isImage).map((file) => (file.name === "image.png" ? new File([file], `pasted ${new Date().toLocaleTimeString("en-GB")}.png`, { type: file.type }) : file));
}
