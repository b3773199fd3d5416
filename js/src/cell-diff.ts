/** The difference of two texts: by lines, to show it, and as the smallest edits, to apply it. Pure. */

/** A line of a diff: the same in both texts, removed, or added. */
export interface DiffLine {
  readonly kind: "same" | "removed" | "added";
  readonly text: string;
}

/** A replacement of the characters from `start` to `end`. */
export interface Edit {
  readonly start: number;
  readonly end: number;
  readonly text: string;
}

/** Above this number of compared pairs of lines, everything between the common ends counts as changed. */
const MAX_PAIRS = 4_000_000;

/** Compare two texts by lines. */
export function diffLines(before: string, after: string): readonly DiffLine[] {
  const a = before === "" ? [] : before.split("\n");
  const b = after === "" ? [] : after.split("\n");
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head++;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a.at(-1 - tail) === b.at(-1 - tail)) tail++;
  const same = (text: string): DiffLine => ({ kind: "same", text });
  return [
    ...a.slice(0, head).map(same),
    ...compare(a.slice(head, a.length - tail), b.slice(head, b.length - tail)),
    ...a.slice(a.length - tail).map(same),
  ];
}

/** Compare lines by their longest common subsequence. */
function compare(a: readonly string[], b: readonly string[]): DiffLine[] {
  const removed = (text: string): DiffLine => ({ kind: "removed", text });
  const added = (text: string): DiffLine => ({ kind: "added", text });
  if (a.length * b.length > MAX_PAIRS) return [...a.map(removed), ...b.map(added)];
  const width = b.length + 1;
  const common = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      common[i * width + j] =
        a[i] === b[j]
          ? common[(i + 1) * width + j + 1]! + 1
          : Math.max(common[(i + 1) * width + j]!, common[i * width + j + 1]!);
  const lines: DiffLine[] = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) lines.push({ kind: "same", text: a[(j++, i++)]! });
    else if (j === b.length || (i < a.length && common[(i + 1) * width + j]! >= common[i * width + j + 1]!))
      lines.push(removed(a[i++]!));
    else lines.push(added(b[j++]!));
  }
  return lines;
}

/** Return the edits that turn a text into another, from the last one to the first. */
export function editsOf(before: string, after: string): readonly Edit[] {
  const edits: Edit[] = [];
  let [old, current] = [0, 0]; // positions in both texts
  let [removed, added] = ["", ""];
  const flush = (): void => {
    if (removed || added) edits.unshift(trimmed(old - removed.length, removed, added));
    [removed, added] = ["", ""];
  };
  for (const { kind, text } of diffLines(before, after)) {
    if (kind === "same") flush();
    if (kind !== "added") {
      const line = lineAt(before, old, text);
      old += line.length;
      if (kind === "removed") removed += line;
    }
    if (kind !== "removed") {
      const line = lineAt(after, current, text);
      current += line.length;
      if (kind === "added") added += line;
    }
  }
  flush();
  // The last line of a text may have no line end while the same line of the other text has one.
  return apply(before, edits) === after ? edits : [trimmed(0, before, after)];
}

/** Apply edits, from the last one to the first. */
export function apply(text: string, edits: readonly Edit[]): string {
  return edits.reduce((left, edit) => left.slice(0, edit.start) + edit.text + left.slice(edit.end), text);
}

function lineAt(text: string, start: number, line: string): string {
  return text[start + line.length] === "\n" ? `${line}\n` : line;
}

/** Leave out the characters that both texts begin and end with. Surrogate pairs are not split. */
function trimmed(start: number, before: string, after: string): Edit {
  const length = Math.min(before.length, after.length);
  let head = 0;
  while (head < length && before[head] === after[head]) head++;
  if (head > 0 && isHighSurrogate(before, head - 1)) head--;
  let tail = 0;
  while (tail < length - head && before.at(-1 - tail) === after.at(-1 - tail)) tail++;
  if (tail > 0 && isHighSurrogate(before, before.length - tail - 1)) tail--;
  return { start: start + head, end: start + before.length - tail, text: after.slice(head, after.length - tail) };
}

function isHighSurrogate(text: string, at: number): boolean {
  return /[\uD800-\uDBFF]/.test(text[at] ?? "");
}
