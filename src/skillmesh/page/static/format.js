// Numbers, dates and lists in words.

export function percent(share) {
	if (share === null || share === undefined) return "–";
	const rounded = Math.round(share * 100);
	if (rounded === 0 && share > 0) return "under 1%";
	if (rounded === 100 && share < 0.9995) return "over 99%";
	return `${rounded}%`;
}

export function bytes(count) {
	if (!count) return "0 B";
	const step = Math.min(3, Math.floor(Math.log10(count) / 3));
	const value = count / 1000 ** step;
	return `${value >= 10 || step === 0 ? Math.round(value) : value.toFixed(1)} ${["B", "KB", "MB", "GB"][step]}`;
}

export function count(number, one, many = `${one}s`) {
	return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

export function date(text) {
	const day = new Date(text);
	return Number.isNaN(day.getTime()) ? text : day.toLocaleDateString("en-GB", { day: "numeric", month: "short", year: "numeric" });
}

export function seconds(value) {
	if (value < 1) return "under a second";
	if (value < 90) return count(Math.round(value), "second");
	if (value < 5400) return count(Math.round(value / 60), "minute");
	if (value < 172800) return count(Math.round(value / 3600), "hour");
	return count(Math.round(value / 86400), "day");
}

export function shortKey(key) {
	return `${key.slice(0, 8)}…${key.slice(-4)}`;
}

export function quoted(name) {
	return `‘${name}’`;
}

/* Some letters look like others, and a stranger's name can borrow a known one that way. */
export function withLetters(name, letters) {
	return letters?.length ? `${name} (unusual letters: ${letters.join(", ")})` : name;
}

export function waiting(number, one) {
	return `${count(number, one)} ${number === 1 ? "waits" : "wait"}`;
}

/* A message of the agent as a sentence; a first word that is a file's name stays as it is. */
export function sentence(text) {
	return text?.replace(/^[a-z]+(?= )/, (word) => word[0].toUpperCase() + word.slice(1));
}

export function some(names) {
	return names.slice(0, 6).join(", ") + (names.length > 6 ? ` and ${names.length - 6} more` : "");
}
