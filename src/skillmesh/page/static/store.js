// What the page knows of the agent, and who wants to hear when it changes.

import { get } from "./api.js";

export const state = { agent: null, tasks: null, lessons: null, mesh: null, trust: null, quarantine: null };

const LOADERS = {
	agent: () => get("/agent"),
	tasks: async () => (await get("/tasks")).tasks,
	mesh: () => get("/mesh"),
	lessons: async () => (await get("/lessons")).lessons,
	trust: () => get("/trust"),
	quarantine: async () => (await get("/quarantine")).held,
};
const OWNER_ONLY = new Set(["lessons", "trust", "quarantine"]);

const watchers = [];
const loading = new Map(); // topic → whether it changed again while it was loading

export const isOwner = () => state.agent?.role === "owner";

/* Calls `action` now and whenever one of the topics changes. */
export function watch(topics, action) {
	watchers.push({ topics, action });
	action();
}

function tell(topic) {
	for (const { topics, action } of watchers) if (topics.includes(topic)) action();
}

async function load(topic) {
	if (OWNER_ONLY.has(topic) && !isOwner()) return;
	if (loading.has(topic)) {
		loading.set(topic, true);
		return;
	}
	loading.set(topic, false);
	try {
		do {
			loading.set(topic, false);
			const value = await LOADERS[topic]();
			if (loading.get(topic)) continue; // changed on the way: an older answer must not replace a newer event
			state[topic] = value;
			tell(topic);
		} while (loading.get(topic));
	} finally {
		loading.delete(topic);
	}
}

/* Fetches topics again. Failures stay silent: the connection status speaks for them, and the next event tries again. */
export async function refresh(topics) {
	await Promise.allSettled(topics.filter((topic) => topic in LOADERS).map(load));
}

export async function refreshAll() {
	await refresh(["agent"]);
	await refresh(["tasks", "lessons", "mesh", "trust", "quarantine"]);
}

/* Takes a lesson as an event or an answer brought it. */
export function putLesson(lesson) {
	if (loading.has("lessons")) loading.set("lessons", true);
	const known = state.lessons ?? [];
	const place = known.findIndex((other) => other.id === lesson.id);
	state.lessons = place < 0 ? [...known, lesson] : known.with(place, lesson);
	tell("lessons");
}

export function dropLesson(id) {
	state.lessons = (state.lessons ?? []).filter((lesson) => lesson.id !== id);
	tell("lessons");
}

export const lessonOf = (id) => state.lessons?.find((lesson) => lesson.id === id);
export const taskOf = (id) => state.tasks?.find((task) => task.id === id);
