// Calls of the agent's HTTP API; every failure becomes an ApiError with a sentence that can be shown.

import { sentence } from "./format.js";

const BASE = "/api/v1";

class ApiError extends Error {
	constructor(status, title, detail) {
		super(sentence(detail || title) || `The agent answered with status ${status}.`);
		this.status = status;
	}

	/* Whether the same request may work a little later. */
	get passing() {
		return this.status === 0 || this.status === 429 || this.status === 503;
	}
}

const unreachable = () => new ApiError(0, "", "The agent cannot be reached. Is skillmesh page still running?");

let onSignedOut = () => {};

export function whenSignedOut(action) {
	onSignedOut = action;
}

function failure(status, text) {
	if (status === 401) onSignedOut();
	try {
		const problem = JSON.parse(text);
		return new ApiError(status, problem.title, problem.detail);
	} catch {
		return new ApiError(status, "", status === 413 ? "This is larger than the agent accepts." : "");
	}
}

async function request(method, path, { json, body, type, signal } = {}) {
	const headers = {};
	if (json !== undefined) headers["Content-Type"] = "application/json";
	else if (type) headers["Content-Type"] = type;
	let response;
	try {
		response = await fetch(BASE + path, { method, headers, body: json === undefined ? body : JSON.stringify(json), signal });
	} catch (error) {
		if (error.name === "AbortError") throw error;
		throw unreachable();
	}
	const text = await response.text();
	if (!response.ok) throw failure(response.status, text);
	return text ? JSON.parse(text) : null;
}

export const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

export const get = (path, options) => request("GET", path, options);
export const post = (path, json) => request("POST", path, { json });
export const put = (path, json) => request("PUT", path, { json });
export const patch = (path, json) => request("PATCH", path, { json });
export const remove = (path) => request("DELETE", path);
export const sendRaw = (method, path, body, options) => request(method, path, { body, type: body.type || "application/octet-stream", ...options });

/* Sends a body and reports how much of it has left; fetch cannot say that. */
export function upload(path, body, onSent) {
	return new Promise((resolve, reject) => {
		const call = new XMLHttpRequest();
		call.open("POST", BASE + path);
		if (body instanceof Blob) call.setRequestHeader("Content-Type", body.type || "application/octet-stream");
		call.upload.addEventListener("progress", (event) => onSent(event.loaded, event.total));
		call.addEventListener("error", () => reject(unreachable()));
		call.addEventListener("load", () => {
			if (call.status < 300) resolve(JSON.parse(call.responseText));
			else reject(failure(call.status, call.responseText));
		});
		call.send(body);
	});
}

export function imagesForm(files) {
	const form = new FormData();
	for (const file of files) form.append("images", file, file.name || "image.jpg");
	return form;
}

export const ask = (files) => request("POST", "/ask", { body: imagesForm(files) });
export const askFrame = (frame, signal) => sendRaw("POST", "/ask", frame, { signal });
