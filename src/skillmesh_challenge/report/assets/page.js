// A click on a column's name sorts the table by it: numbers by value, largest first; then the other way round.
for (const head of document.querySelectorAll("th")) {
  head.firstChild.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") !== "descending";
    const column = head.cellIndex;
    const body = head.closest("table").tBodies[0];
    const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
    const compare = (a, b) => (a - b || String(a).localeCompare(String(b), undefined, { numeric: true }));
    const sorted = [...body.rows].sort((a, b) => (down ? -1 : 1) * compare(value(a), value(b)));
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.append(...sorted);
  });
}

// A link to a part that is folded opens it.
const unfold = () => {
  const part = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const folded = part && (part.closest("details.part") ?? part.querySelector("details.part"));
  if (folded) {
    folded.open = true;
    part.scrollIntoView();
  }
};
addEventListener("hashchange", unfold);
unfold();
