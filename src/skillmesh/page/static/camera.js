// One camera at a time: opens it, shows it, and cuts frames from it.

import { button, h } from "./dom.js";

let open = null; // the Camera that holds the device now

const REASONS = {
	NotAllowedError: "The browser may not use the camera. Allow it in the browser's settings of this page.",
	NotFoundError: "No camera was found.",
	NotReadableError: "Another program uses the camera.",
};

/* Browsers offer cameras only to https pages and to pages from this computer itself. */
export const hasCamera = () => Boolean(navigator.mediaDevices?.getUserMedia);

export class Camera {
	constructor() {
		this.video = h("video", { label: "Camera picture" });
		this.video.muted = true;
		this.video.playsInline = true;
		this.stream = null;
		this.onclose = () => {};
	}

	get isOpen() {
		return this.stream !== null;
	}

	async open() {
		open?.close();
		open = this;
		try {
			this.stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment", width: { ideal: 1920 }, height: { ideal: 1080 } } });
		} catch (error) {
			if (open === this) open = null;
			throw new Error(REASONS[error.name] ?? `The camera could not be opened: ${error.message}`);
		}
		if (open !== this) return this.#release(); // closed or taken over while the browser asked for permission
		this.stream.getVideoTracks()[0].addEventListener("ended", () => this.close());
		this.video.srcObject = this.stream;
		await this.video.play().catch(() => {});
	}

	close() {
		if (open === this) open = null;
		if (!this.isOpen) return;
		this.#release();
		this.onclose();
	}

	#release() {
		this.stream?.getTracks().forEach((track) => track.stop());
		this.stream = null;
		this.video.srcObject = null;
	}

	/* A JPEG of the present picture, at most `longest` pixels wide and high. Null before the first picture. */
	frame(longest = Infinity, quality = 0.92) {
		const { videoWidth, videoHeight } = this.video;
		if (!videoWidth) return Promise.resolve(null);
		const scale = Math.min(1, longest / Math.max(videoWidth, videoHeight));
		const canvas = document.createElement("canvas");
		canvas.width = Math.round(videoWidth * scale);
		canvas.height = Math.round(videoHeight * scale);
		canvas.getContext("2d").drawImage(this.video, 0, 0, canvas.width, canvas.height);
		return new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", quality));
	}
}

let taken = 0;

export function asPhoto(blob) {
	taken += 1;
	return new File([blob], `photo ${taken}.jpg`, { type: "image/jpeg" });
}

export function closeCamera() {
	open?.close();
}

/* A small camera picture with a hint, shown while the camera is open. */
export function cameraBox(hint, onclose = () => {}) {
	const camera = new Camera();
	const close = button("Close camera", () => camera.close(), { class: "quiet" });
	const element = h("div.small-camera.card.row.between", { hidden: true }, camera.video, h("p.muted", hint), close);
	camera.onclose = () => {
		element.hidden = true;
		onclose();
	};
	return { camera, element };
}
