// Builds elements from text and nodes; nothing here reads a string as HTML, because names come from strangers.

const PATHS = {
	camera: "M4 8h3.5l1.5-2.5h6L16.5 8H20v11H4zM12 16.5a3.3 3.3 0 1 0 0-6.6 3.3 3.3 0 0 0 0 6.6z",
	close: "M6 6l12 12M18 6 6 18",
	copy: "M9 9h10v10H9zM6 15H5V5h10v1",
	folder: "M3.5 18.5v-12h6l2 2.5h9v9.5z",
	image: "M4 5h16v14H4zM4 16l4.5-4.5L13 16l3-3 4 4M15.5 9.2h.01",
	pencil: "M4 20l1-4.5L16 4.5 19.5 8 8.5 19z",
	record: "M12 18a6 6 0 1 0 0-12 6 6 0 0 0 0 12z",
	trash: "M5 7h14M9.5 7V4.5h5V7M7 7l1 12.5h8L17 7",
	up: "M12 20V9m-5 5 5-5 5 5M5 4h14",
};

/* h("p#id.muted", {title: "x"}, child) returns the element. Attributes may be left out, and `label` is aria-label; children
   are nodes, strings or lists, and empty ones are skipped. */
export function h(selector, ...children) {
	const [, tag, id, classes] = /^(\w+)(?:#([\w-]+))?(?:\.(.+))?$/.exec(selector);
	const element = document.createElement(tag);
	if (id) element.id = id;
	if (classes) element.className = classes.replaceAll(".", " ");
	const props = children[0]?.constructor === Object ? children.shift() : {};
	for (const [name, value] of Object.entries(props)) {
		if (value === null || value === undefined || value === false) continue;
		if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
		else if (name === "data") Object.assign(element.dataset, value);
		else if (name === "value") element.value = value;
		else element.setAttribute(name === "label" ? "aria-label" : name, value === true ? "" : value);
	}
	fill(element, children);
	return element;
}

export function fill(element, ...children) {
	element.replaceChildren(...children.flat(Infinity).filter(Boolean));
}

const svg = (tag, attributes) => {
	const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
	for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
	return element;
};

export function icon(name) {
	const element = svg("svg", { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true" });
	element.append(svg("path", { d: PATHS[name] }));
	return element;
}

/* A button that submits no form; one with an icon alone needs a label. */
export function button(text, onclick, { icon: name, ...props } = {}) {
	return h("button", { type: "button", onclick, title: text ? null : props.label, ...props }, name && icon(name), text && h("span", text));
}

/* A file input that looks like a button. The input itself takes the focus, so keyboard and screen reader meet a real control. */
export function chooser(text, onfiles, { icon: name, main, ...props } = {}) {
	const input = h("input.unseen", { type: "file", label: text, ...props });
	if ("webkitdirectory" in props) input.webkitdirectory = true;
	input.addEventListener("change", () => {
		const files = [...input.files];
		input.value = "";
		if (files.length) onfiles(files);
	});
	return h("label", { class: main ? "button main" : "button" }, input, name && icon(name), h("span", text));
}

/* Shows a list as children of `container`. An item's element stays while its key does, so focus and typed text survive.
   `build(item)` returns {element, update(item), remove()}; the last two are optional. */
export function keyedList(container, key, build) {
	const rows = new Map();
	return (items) => {
		const wanted = new Set(items.map(key));
		for (const [name, row] of rows) {
			if (wanted.has(name)) continue;
			row.remove?.();
			row.element.remove();
			rows.delete(name);
		}
		items.forEach((item, place) => {
			if (!rows.has(key(item))) rows.set(key(item), build(item));
			const row = rows.get(key(item));
			row.update?.(item);
			if (container.children[place] !== row.element) container.insertBefore(row.element, container.children[place] ?? null);
		});
	};
}

/* A row for keyedList that is drawn anew when its item differs; focus returns to the control of the same name. */
export function redrawn(element, draw, same = JSON.stringify) {
	let drawn;
	const update = (item) => {
		const now = same(item);
		if (now === drawn) return;
		drawn = now;
		const focused = element.contains(document.activeElement) && nameOf(document.activeElement);
		fill(element, draw(item));
		if (focused) [...element.querySelectorAll("a, button, input, select")].find((other) => nameOf(other) === focused)?.focus();
	};
	return { element, update };
}

const nameOf = (control) => control.getAttribute("aria-label") ?? control.textContent;

/* Rows of a list that are drawn anew when their items differ. */
export const redrawnList = (container, key, row, draw, same) => keyedList(container, key, () => redrawn(h(row), draw, same));

/* A part of a view under its own heading. */
export function part(selector, title, ...children) {
	const id = `${selector.split(".")[0]}-title`;
	return h(`section#${selector}.part`, { "aria-labelledby": id }, h(`h2#${id}`, title), children);
}

let used = 0;

/* An id for a label or a description whose element occurs many times. */
export function newId(stem) {
	used += 1;
	return `${stem}-${used}`;
}

export function field(label, input, hint) {
	input.id ||= newId("field");
	if (hint) input.setAttribute("aria-describedby", `${input.id}-hint`);
	return h("div.field", h("label", { for: input.id }, label), input, hint && h(`p#${input.id}-hint.hint`, hint));
}

/* A form whose submit runs `action`; nothing here is ever sent by the browser itself. */
export function form(selector, action, ...children) {
	const element = h(`form${selector}`, children);
	element.addEventListener("submit", (event) => {
		event.preventDefault();
		action();
	});
	return element;
}

export const textInput = (id, props) => h(`input#${id}`, { type: "text", maxlength: 200, autocomplete: "off", ...props });

/* A horizontal bar for a share between 0 and 1; the number beside it is what a screen reader reads. */
export function bar(share, kind = "") {
	const inner = h("span");
	inner.style.width = `${100 * (share ?? 0)}%`;
	return h("span", { class: `bar ${kind}`, "aria-hidden": "true" }, inner);
}

/* update() takes {done, total, stage}, or null while that is not known, and other words than the stage. */
export function progressBar(label) {
	const progress = h("progress", { max: 1, "aria-label": label });
	const text = h("span.muted");
	const update = (now, words = now?.stage ?? "") => {
		if (now?.total) progress.value = now.done / now.total;
		else progress.removeAttribute("value");
		text.textContent = words;
	};
	return { element: h("div.progress", progress, text), update };
}
