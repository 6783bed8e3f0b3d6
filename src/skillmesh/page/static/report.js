// What a lesson taught: how often the agent is right, which classes it mixes up, and what would help.

import { bar, h, newId } from "./dom.js";
import { bytes, count, percent, quoted, seconds, sentence } from "./format.js";

const OTHER = "another task";

export function report(figures) {
  return h("div.stack.wide", summary(figures), advice(figures), recalls(figures), wrongImages(figures), matrix(figures));
}

function summary({ accuracy, seconds: taken, bytes: size, classes }) {
  const images = classes.reduce((sum, one) => sum + one.images, 0);
  return h(
    "div.summary", h("h2", { tabindex: "-1" }, accuracy === null ? "Learned" : [h("span.big", percent(accuracy)), " right"]),
    h("p.muted", images ? `of ${count(images, "validation image")}, which were set aside and not learned from` : "No validation images were set aside, so the accuracy is not known."),
    h("p.muted", [taken !== undefined && taken !== null && `Learned in ${seconds(taken)}`, size && `${bytes(size)} to share`].filter(Boolean).join(" · ")),
  );
}

function advice({ advice: text, findings }) {
  if (!text && !findings?.length) return null;
  return h("div.note", text && h("p", sentence(text)), findings?.length ? h("ul", findings.map((finding) => h("li", sentence(finding)))) : null);
}

function recalls({ classes }) {
  if (!classes.length) return null;
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
  if (!rows?.length || classes.length < 2) return null;
  const names = classes.map((one) => one.class);
  const columns = rows[0].map((_, place) => names[place] ?? OTHER);
  const cell = (value, row, column) => {
    const all = rows[row].reduce((sum, number) => sum + number, 0);
    const element = h("td", { class: row === column ? "hit" : "miss" }, String(value));
    element.style.setProperty("--share", `${all ? Math.round((70 * value) / all) : 0}%`);
    return element;
  };
  const id = newId("matrix");
  return h(
    "section.part", h("h3", { id }, "Which classes are mixed up"),
    h(
      "div.scroll.card",
      { tabindex: "0", role: "region", "aria-labelledby": id },
      h(
        "table.matrix", h("caption", "Rows: what the validation images show. Columns: what was answered."),
        h("thead", h("tr", h("td"), columns.map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", rows.map((values, row) => h("tr", h("th", { scope: "row" }, names[row] ?? OTHER), values.map((value, column) => cell(value, row, column))))),
      ),
    ),
  );
}
