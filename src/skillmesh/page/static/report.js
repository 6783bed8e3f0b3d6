// What a lesson taught: how often the agent is right, which classes it mixes up, and what would help.

import { bar, h, newId } from "./dom.js";
import { bytes, count, percent, quoted, seconds, sentence } from "./format.js";

const OTHER = "another task";

export function report(figures) {
	const images = figures.classes.reduce((sum, one) => sum + one.images, 0);
	return h("div.stack.wide", summary(figures, images), advice(figures), images > 0 && [recalls(figures), wrongImages(figures), matrix(figures)]);
}

function summary({ accuracy, seconds: taken, bytes: size }, images) {
	return h(
		"div",
		h("h2", { tabindex: "-1" }, images === 0 ? "Learned" : [h("span.big", percent(accuracy)), " right"]),
		h("p.muted", images ? `of ${count(images, "validation image")}, which were set aside and not learned from` : "No validation images were set aside, so the accuracy was not measured."),
		h("p.muted", `Learned in ${seconds(taken)} · ${bytes(size)} to share`),
	);
}

function advice({ advice: text, findings }) {
	if (!text && !findings?.length) return null;
	return h("div.note", text && h("p", sentence(text)), findings?.length ? h("ul", findings.map((finding) => h("li", sentence(finding)))) : null);
}

function recalls({ classes }) {
	const rows = classes.map((one) => {
		const mixed = Object.entries(one.given ?? {}).filter(([other]) => other !== one.class).sort((a, b) => b[1] - a[1]);
		const mistakes = [...mixed.map(([other, number]) => `${number} × ${quoted(other)}`), one.given_other_task ? `${one.given_other_task} × ${OTHER}` : null].filter(Boolean);
		return h("li", h("span", one.class), h("span.number", percent(one.recall)), bar(one.recall), mistakes.length ? h("span.mistakes.muted", `answered as ${mistakes.join(", ")}`) : null);
	});
	return h("section.recalls.part", h("h3", "Right per class"), h("ul.meters", rows));
}

function wrongImages({ wrong }) {
	if (!wrong?.length) return null;
	const pictures = wrong.map((image) => h("figure", h("img", { src: image.url, alt: `A picture of ${image.label}`, loading: "lazy" }), h("figcaption", h("b", image.given ?? "not answered"), h("span.muted", ` instead of ${image.label}, ${percent(image.confidence)}`))));
	return h("section.part", h("h3", "Answered wrongly"), h("div.wrong", pictures));
}

function matrix({ matrix: rows, classes }) {
	const names = classes.map((one) => one.class);
	const columns = rows[0].map((_, place) => names[place] ?? OTHER);
	const cell = (value, row, column) => {
		const all = rows[row].reduce((sum, number) => sum + number, 0);
		const element = h("td", { class: value ? (row === column ? "hit" : "miss") : "muted" }, String(value));
		element.style.setProperty("--share", `${all ? Math.round((70 * value) / all) : 0}%`);
		return element;
	};
	const id = newId("matrix");
	return h(
		"section.part",
		h("h3", { id }, "Which classes are mixed up"),
		h("p.muted", "Rows: what the validation images show. Columns: what was answered."),
		h(
			"div.scroll.card",
			{ tabindex: "0", role: "region", "aria-labelledby": id },
			h(
				"table.matrix",
		h("caption", "Confusion matrix"),
				h("thead", h("tr", h("td"), columns.map((name) => h("th", { scope: "col" }, name)))),
				h("tbody", rows.map((values, row) => h("tr", h("th", { scope: "row" }, names[row] ?? OTHER), values.map((value, column) => cell(value, row, column))))),
			),
		),
	);
}
