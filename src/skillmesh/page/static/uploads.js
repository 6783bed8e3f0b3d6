// Sends the images of a lesson in batches, one after the other, while the person goes on working.

import { imagesForm, upload } from "./api.js";
import { batches, isZip } from "./files.js";
import { bytes } from "./format.js";
import { putLesson, state } from "./store.js";
import { zip } from "./zip.js";

const BATCH = 20;
const ATTEMPTS = 4;

const queues = new Map();

export function uploadsOf(lessonId) {
  if (!queues.has(lessonId)) queues.set(lessonId, new Uploads(lessonId));
  return queues.get(lessonId);
}

export const anyUploads = () => [...queues.values()].some((queue) => queue.running);

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

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

  /* Images {file} for one class. */
  addImages(files, className) {
    this.#queue(this.#small(files.map((file) => ({ file }))), (items) => ({ items, className }));
  }

  /* Images {path, file} whose path says split and class. */
  addTree(items) {
    this.#queue(this.#small(items), (batch) => ({ items: batch, tree: true }));
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

  #small(items) {
    const most = state.agent?.limits?.image_bytes ?? Infinity;
    for (const { file } of items.filter(({ file }) => file.size > most))
      this.refused.push({ name: file.name, reason: `${bytes(file.size)} is more than the ${bytes(most)} an image may have` });
    return items.filter(({ file }) => file.size <= most);
  }

  #queue(items, asBatch) {
    const mostBytes = 0.9 * (state.agent?.limits?.body_bytes ?? Infinity);
    this.waiting.push(...batches(items, BATCH, mostBytes).map(asBatch));
    this.total += items.length;
    this.#run();
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

  async #sendOnce({ items, className, tree, archive }) {
    if (archive)
      return upload(`${this.path}/archive`, archive.slice(0, archive.size, "application/zip"), (sent, all) => {
        this.sending = sent < all ? `${archive.name}: ${bytes(sent)} of ${bytes(all)}` : `${archive.name}: the agent reads its images`;
        this.#tell();
      });
    if (tree) return upload(`${this.path}/archive`, await zip(items), () => {});
    const files = items.map(({ file }) => file);
    return upload(`${this.path}/images?class=${encodeURIComponent(className)}`, imagesForm(files), () => {});
  }

  #tell() {
    for (const watcher of this.watchers) watcher();
  }
}

/* Puts whatever was dropped or chosen into a lesson: a zip, a folder of classes, or nothing if it is neither. */
export function addWholeTask(uploads, task, zips) {
  for (const file of zips.filter(isZip)) uploads.addArchive(file);
  if (task?.hasSplits) uploads.addTree(task.images);
  else for (const className of task?.classes ?? []) uploads.addImages(task.images.filter((image) => image.className === className).map(({ file }) => file), className);
}
