// Sends the images of a lesson in batches, one after the other, while the person goes on working.

import { imagesForm, pause, upload } from "./api.js";
import { batches } from "./files.js";
import { bytes } from "./format.js";
import { putLesson, state } from "./store.js";

const BATCH = 20;
const ATTEMPTS = 4;

const queues = new Map();

export function uploadsOf(lessonId) {
	if (!queues.has(lessonId)) queues.set(lessonId, new Uploads(lessonId));
	return queues.get(lessonId);
}

export const anyUploads = () => [...queues.values()].some((queue) => queue.running);

class Uploads {
	constructor(lessonId) {
		this.path = `/lessons/${lessonId}`;
		this.waiting = []; // of {items, className} or {archive}
		this.refused = []; // of {name, reason}: sending these again would not help
		this.failed = []; // batches that may be sent again
		this.reason = "";
		this.done = 0;
		this.total = 0;
		this.sending = ""; // about the archive on its way
		this.running = false;
		this.watchers = new Set();
	}

	addImages(files, className) {
		const most = state.agent.limits.image_bytes;
		const small = files.filter((file) => file.size <= most);
		for (const { name, size } of files.filter((file) => file.size > most)) this.refused.push({ name, reason: `${bytes(size)} is more than the ${bytes(most)} an image may have` });
		const mostBytes = 0.9 * state.agent.limits.body_bytes;
		this.waiting.push(...batches(small.map((file) => ({ file })), BATCH, mostBytes).map((items) => ({ items, className })));
		this.total += small.length;
		this.#run();
	}

	addArchive(file) {
		this.waiting.push({ archive: file, items: [{ file }] });
		this.total += 1;
		this.#run();
	}

	retry() {
		this.waiting.push(...this.failed);
		this.failed = [];
		this.#run();
	}

	forgetProblems() {
		for (const { items } of this.failed) this.total -= items.length;
		this.failed = [];
		this.refused = [];
		this.#tell();
	}

	stop() {
		this.total -= this.waiting.reduce((sum, { items }) => sum + items.length, 0);
		this.waiting = [];
		this.#tell();
	}

	async #run() {
		this.#tell();
		if (this.running) return;
		this.running = true;
		while (this.waiting.length) {
			const batch = this.waiting.shift();
			try {
				const answer = await this.#send(batch);
				this.refused.push(...answer.refused);
				this.done += batch.items.length;
				putLesson(answer.lesson);
			} catch (error) {
				this.failed.push(batch);
				this.reason = error.message;
			}
			this.sending = "";
			this.#tell();
		}
		this.running = false;
		if (!this.failed.length) this.done = this.total = 0;
		this.#tell();
	}

	async #send(batch) {
		for (let attempt = 1; ; attempt += 1) {
			try {
				return await this.#sendOnce(batch);
			} catch (error) {
				if (!error.passing || attempt === ATTEMPTS) throw error;
				await pause(500 * 2 ** attempt);
			}
		}
	}

	async #sendOnce({ items, className, archive }) {
		if (archive)
			return upload(`${this.path}/archive`, archive.slice(0, archive.size, "application/zip"), (sent, all) => {
				this.sending = sent < all ? `${archive.name}: ${bytes(sent)} of ${bytes(all)}` : `${archive.name}: the agent reads its images`;
				this.#tell();
			});
		const files = items.map(({ file }) => file);
		return upload(`${this.path}/images?class=${encodeURIComponent(className)}`, imagesForm(files), () => {});
	}

	#tell() {
		for (const watcher of this.watchers) watcher();
	}
}

/* Puts zips, and a folder of classes if there is one, into a lesson that has these classes. */
export function addWholeTask(uploads, task, zips) {
	for (const file of zips) uploads.addArchive(file);
	for (const [className, files] of Object.entries(task?.classes ?? {})) uploads.addImages(files, className);
}
