// The camera in the view "Ask": a still picture, or answers several times a second.

import { askFrame, pause } from "./api.js";
import { inWords, verdict } from "./answer.js";
import { asPhoto, Camera } from "./camera.js";
import { button, fill, h } from "./dom.js";
import { announce, attempt } from "./feedback.js";

const LONGEST = 640; // pixels of a live frame; still pictures keep their size
const INTERVAL = 250; // milliseconds between two questions at least

export function cameraPanel(askAbout) {
	const camera = new Camera();
	const words = h("div#live-answer.live-answer", { hidden: true });
	const shoot = button("Take a picture", takePicture, { id: "camera-shoot", icon: "camera", class: "main" });
	const live = button("Live", () => (running ? stop() : run()), { id: "camera-live", icon: "record", "aria-pressed": "false" });
	const close = button("Close camera", () => camera.close(), { id: "camera-close", class: "quiet" });
	const element = h("section#camera.camera", { label: "Camera", hidden: true }, h("div.viewfinder", camera.video, words), h("div.row.center", shoot, live, close));
	let running = null; // the AbortController of the live mode

	camera.onclose = () => {
		stop();
		const hadFocus = element.contains(document.activeElement);
		element.hidden = true;
		if (hadFocus) document.getElementById("ask-camera")?.focus();
	};

	async function open() {
		await attempt(() => camera.open());
		element.hidden = !camera.isOpen;
		if (!camera.isOpen) return;
		shoot.focus();
		element.scrollIntoView({ block: "nearest" });
	}

	async function takePicture() {
		const blob = await camera.frame();
		if (blob) askAbout([asPhoto(blob)]);
	}

	function stop() {
		running?.abort();
		running = null;
		live.setAttribute("aria-pressed", "false");
		words.hidden = true;
	}

	async function run() {
		const control = new AbortController();
		running = control;
		live.setAttribute("aria-pressed", "true");
		words.hidden = false;
		fill(words, h("p", "Looking…"));
		let spoken;
		while (!control.signal.aborted) {
			const begun = performance.now();
			try {
				const frame = await camera.frame(LONGEST, 0.85);
				if (frame) {
					const { answers } = await askFrame(frame, control.signal);
					if (control.signal.aborted) return;
					fill(words, verdict(answers[0]));
					if (spoken !== answers[0].label) announce(inWords(answers[0]));
					spoken = answers[0].label;
				}
			} catch (error) {
				if (control.signal.aborted) return;
				fill(words, h("p.bad", error.message));
				if (!error.passing) {
					stop();
					words.hidden = false;
					return;
				}
				await pause(1000);
			}
			await pause(Math.max(0, INTERVAL - (performance.now() - begun)));
		}
	}

	return { element, open };
}
