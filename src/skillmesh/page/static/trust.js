// Whom the agent trusts: its own key to show, keys of others to add by hand, by camera or from an image.

import { put, remove, sendRaw } from "./api.js";
import { Camera, hasCamera } from "./camera.js";
import { button, chooser, field, fill, h, keyedList, redrawn } from "./dom.js";
import { announce, attempt, confirmed, toast } from "./feedback.js";
import { count, quoted, shortKey } from "./format.js";
import { refresh, state, watch } from "./store.js";

const LOOK_EVERY = 400; // milliseconds between two frames sent while scanning

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

export function trustPart() {
  return h(
    "section",
    { id: "trust", "aria-labelledby": "trust-title", class: "stack wide" },
    h("h2", { id: "trust-title" }, "Trust"),
    h("div", { class: "split" }, ownKey(), addForm()),
    seenList(),
    trustedList(),
  );
}

function ownKey() {
  const code = h("code", { class: "whole-key", id: "own-key" });
  const copy = button("Copy key", async () => {
    const key = state.trust.mine.key;
    try {
      await navigator.clipboard.writeText(key);
      toast("The key is copied.");
    } catch {
      // Outside https a page may not write to the clipboard; selecting lets the person do it.
      getSelection().selectAllChildren(code);
      announce("The key is selected. Press Ctrl-C to copy it.");
    }
  }, { icon: "copy", id: "copy-key" });
  const qr = h("img", { class: "qr", alt: "QR code of this agent's key", hidden: true });
  watch(["trust"], () => {
    const mine = state.trust?.mine;
    if (!mine) return;
    code.textContent = mine.key;
    const url = mine.qr_url ?? mine.qr;
    qr.hidden = !url;
    if (url && qr.getAttribute("src") !== url) qr.src = url;
  });
  return h("div", { class: "card stack" }, h("h3", {}, "This agent's key"), h("p", { class: "muted" }, "Others who add it trust what this agent teaches."), qr, code, h("div", { class: "row" }, copy));
}

function addForm() {
  const key = h("input", { type: "text", id: "trust-key", required: true, pattern: "\\s*[0-9a-fA-F]{64}\\s*", autocomplete: "off", spellcheck: "false", title: "64 digits from 0-9 and a-f" });
  const name = h("input", { type: "text", id: "trust-name", maxlength: 200, autocomplete: "off" });
  const add = h("button", { type: "submit", class: "main", id: "trust-add" }, "Trust this teacher");
  const scan = scanner((found) => {
    key.value = found.key;
    name.value = found.name ?? "";
    announce(`Found the key of ${found.name || "an agent"}. Check it, then trust it.`);
    add.focus();
  });
  const submit = async (event) => {
    event.preventDefault();
    if (await trust(key.value.trim().toLowerCase(), name.value.trim(), add)) key.value = name.value = "";
  };
  return h(
    "form",
    { class: "card stack", onsubmit: submit },
    h("h3", {}, "Trust another teacher"),
    h("p", { class: "muted" }, "Compare the key with its owner, best in person. What a trusted teacher shares may answer here after a trial."),
    field("Key", key, "64 digits from 0-9 and a-f"),
    field("Name", name, "Yours for this teacher; optional"),
    scan.element,
    h("div", { class: "row" }, add, scan.open, scan.file),
  );
}

function scanner(onfound) {
  const video = h("video", { "aria-label": "Camera picture" });
  const camera = new Camera(video);
  const element = h("div", { class: "teach-camera", hidden: true }, video, h("p", { class: "muted" }, "Hold the other agent's QR code before the camera."), button("Close camera", () => camera.close(), { class: "quiet" }));
  camera.onclose = () => (element.hidden = true);

  async function look() {
    await attempt(() => camera.open(), open);
    element.hidden = !camera.isOpen;
    while (camera.isOpen) {
      const frame = await camera.frame();
      try {
        const found = frame && (await sendRaw("POST", "/trust/scan", frame));
        if (found && camera.isOpen) {
          camera.close();
          onfound(found);
          return;
        }
      } catch (error) {
        // 422 means that this frame shows no readable code yet.
        if (error.status !== 422 && !error.passing) {
          camera.close();
          toast(error.message, "bad");
          return;
        }
      }
      await pause(LOOK_EVERY);
    }
  }

  async function read([image]) {
    const found = await attempt(() => sendRaw("POST", "/trust/scan", image));
    if (found) onfound(found);
  }

  const open = hasCamera() && button("Scan a QR code", look, { icon: "camera", id: "trust-scan" });
  const file = chooser("QR code from an image", read, { icon: "image", id: "trust-image", accept: "image/*" });
  return { element, open, file };
}

async function trust(key, name, control) {
  const done = await attempt(async () => {
    await put(`/trust/${key}`, { name });
    return true;
  }, control);
  if (done) toast(`${name || shortKey(key)} is trusted now.`);
  refresh(["trust", "quarantine", "mesh", "tasks"]);
  return done;
}

function seenList() {
  const list = h("ul", { class: "plain stack" });
  const part = h("section", { "aria-labelledby": "seen-title", hidden: true }, h("h3", { id: "seen-title" }, "Seen, not trusted"), list);
  const show = keyedList(list, (seen) => seen.teacher_key, () => redrawn(h("li", { class: "card row between" }), seenRow));
  watch(["trust"], () => {
    show(state.trust?.seen ?? []);
    part.hidden = !state.trust?.seen?.length;
  });
  return part;
}

function seenRow({ teacher, teacher_key: key, tasks }) {
  const who = teacher || shortKey(key);
  const trustIt = async (event) => {
    const control = event.currentTarget;
    const name = await confirmed({ title: `Trust ${quoted(who)}?`, text: `Anyone can use a name. Compare the key with its owner: ${key}`, action: "Trust", danger: false, input: { label: "Your name for this teacher", value: teacher ?? "" } });
    if (name !== null) await trust(key, name, control);
  };
  return [h("div", { class: "grow" }, h("b", {}, who), h("p", { class: "key" }, shortKey(key)), h("p", { class: "muted" }, `teaches ${tasks.slice(0, 8).map(quoted).join(", ")}${tasks.length > 8 ? ` and ${tasks.length - 8} more` : ""}`)), button("Trust", trustIt, { "aria-label": `Trust ${who}`, data: { focus: "trust" } })];
}

function trustedList() {
  const list = h("ul", { class: "plain stack" });
  const none = h("p", { class: "muted" }, "No other teacher is trusted yet.");
  const show = keyedList(list, (one) => one.key, () => redrawn(h("li", { class: "card row between" }), trustedRow));
  watch(["trust"], () => {
    show(state.trust?.trusted ?? []);
    none.hidden = Boolean(state.trust?.trusted?.length);
  });
  return h("section", { "aria-labelledby": "trusted-title" }, h("h3", { id: "trusted-title" }, "Trusted teachers"), none, list);
}

function trustedRow({ key, name }) {
  const who = name || shortKey(key);
  const stop = button("Stop trusting", async () => {
    if ((await confirmed({ title: `Stop trusting ${quoted(who)}?`, text: "The modules of this teacher move to quarantine and no longer answer.", action: "Stop trusting" })) === null) return;
    const answer = await attempt(() => remove(`/trust/${key}`), stop);
    if (answer) toast(`${count(answer.moved, "module")} moved to quarantine.`);
    refresh(["trust", "quarantine", "tasks", "mesh"]);
  }, { "aria-label": `Stop trusting ${who}`, class: "quiet danger", data: { focus: "stop" } });
  return [h("div", { class: "grow" }, h("b", {}, who), h("p", { class: "key" }, shortKey(key))), stop];
}
