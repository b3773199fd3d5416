/**
 * The dialog for a rewind: the checkpoints of a turn, a preview of each, and a message.
 *
 * All texts are untrusted and set as text.
 */

import { Dialog, showDialog } from "@jupyterlab/apputils";
import { Widget } from "@lumino/widgets";
import type { Api } from "./api";
import { make, setHidden, setText } from "./dom";
import { trans } from "./text";

export interface Point {
  readonly seq: number;
  readonly at: number;
  readonly agent: string;
  readonly says: string;
  /** The first words of an answer, or "". */
  readonly text?: string;
}

export interface FileChange {
  readonly path: string;
  readonly what: "back" | "gone" | "changed";
  /** Number of lines; -1 if they can't be counted. */
  readonly plus: number;
  readonly minus: number;
  readonly diff: string;
}

export interface Preview {
  readonly point: number;
  readonly points: readonly Point[];
  readonly lines: readonly string[];
  readonly files: readonly FileChange[];
  readonly file_count: number;
  readonly kept: { readonly recipe: unknown };
  /** The state of the turn. */
  readonly status: string;
}

export interface Choice {
  readonly to: string;
  readonly say: string;
  readonly agent?: string;
  /** Number of new turns to start from there, as a sweep. */
  readonly times?: number;
  /** Whether to interrupt the calls in flight of a live turn. */
  readonly now?: boolean;
}

/** The last checkpoint of a turn. */
const END = "the end";

const MAX_TIMES = 100;

/** Stands for the field in its label. */
const FIELD = "\uFFFC";

const LIVE = ["running", "awaiting", "stopping"];

const whatOf = (what: FileChange["what"]): string =>
  ({ back: trans.__("will be restored"), gone: trans.__("will be removed"), changed: trans.__("will be reverted") })[what];

/**
 * Let the user choose a checkpoint. Resolves to undefined if the user cancels.
 *
 * @param getPreview Gets the preview of a rewind to a checkpoint.
 * @param at The event number of the preselected checkpoint; by default the last one that undoes something.
 */
export async function chooseRewind(getPreview: (to: string) => Promise<Preview>, at?: number): Promise<Choice | undefined> {
  const last = await getPreview(at === undefined ? END : String(at));
  // The last checkpoint would undo nothing.
  const before = at === undefined ? last.points.at(-2) : undefined;
  const first = before ? await getPreview(String(before.seq)) : last;
  const body = new RewindBody(getPreview, first);
  const { button } = await showDialog({
    title: trans.__("Go back"),
    body,
    buttons: [Dialog.cancelButton(), Dialog.okButton({ label: trans.__("Go back") })],
    focusNodeSelector: "[role=listbox]",
  });
  return button.accept ? body.getValue() : undefined;
}

/** Get the preview of a rewind from the server. */
export function previewOf(api: Api, turn: string): (to: string) => Promise<Preview> {
  return (to) => api.rewind(turn, { to, preview: true }) as Promise<Preview>;
}

export class RewindBody extends Widget implements Dialog.IBodyWidget<Choice> {
  private readonly list = make("ul");
  private readonly summary = make("div", "says");
  private readonly files = make("div", "files");
  private readonly message = make("textarea");
  private readonly to = make("select");
  private readonly times = make("input");
  private readonly now = make("input");
  private readonly points: readonly Point[];
  private chosen = 0;
  private requests = 0;

  constructor(
    private readonly getPreview: (to: string) => Promise<Preview>,
    first: Preview,
  ) {
    super();
    this.addClass("nba-rewind");
    this.points = first.points;
    this.makeList();
    this.summary.setAttribute("role", "status");
    this.message.rows = 2;
    this.message.placeholder = trans.__("Message to the agents (optional)");
    this.message.setAttribute("aria-label", this.message.placeholder);
    this.to.setAttribute("aria-label", trans.__("Recipient"));
    for (const agent of ["", ...new Set(this.points.map((point) => point.agent).filter(Boolean))]) {
      const option = make("option");
      option.value = agent;
      option.textContent = agent || trans.__("all agents");
      this.to.append(option);
    }
    setHidden(this.to, first.kept.recipe !== null);
    this.times.type = "number";
    this.times.min = "1";
    this.times.max = String(MAX_TIMES);
    this.times.value = "1";
    const timesLabel = make("label", "", this.times);
    const [before = "", after = ""] = trans.__("Try it %1 times", FIELD).split(FIELD);
    timesLabel.prepend(before);
    timesLabel.append(after);
    this.now.type = "checkbox";
    const nowLabel = make("label", "", this.now);
    nowLabel.append(` ${trans.__("Interrupt calls in flight")}`);
    nowLabel.title = trans.__("The live turn is stopped first. Without this option, its calls in flight finish.");
    setHidden(nowLabel, !LIVE.includes(first.status));
    const side = make("div", "side", this.summary, this.files);
    this.node.append(make("div", "both", this.list, side), make("div", "word", this.message, this.to, timesLabel, nowLabel));
    this.mark(this.points.findIndex((point) => point.seq === first.point));
    this.draw(first);
  }

  getValue(): Choice {
    const say = this.message.value.trim();
    const agent = say ? this.to.value : "";
    const times = Math.min(MAX_TIMES, Math.round(this.times.valueAsNumber));
    return {
      to: String(this.points[this.chosen]?.seq ?? ""),
      say,
      ...(agent && { agent }),
      ...(times > 1 && { times }),
      ...(this.now.checked && { now: true }),
    };
  }

  protected override onAfterAttach(): void {
    this.list.children[this.chosen]?.scrollIntoView({ block: "center" });
  }

  private makeList(): void {
    const start = this.points[0]?.at ?? 0;
    this.list.setAttribute("role", "listbox");
    this.list.setAttribute("aria-label", trans.__("Checkpoints of the turn"));
    this.list.tabIndex = 0;
    this.points.forEach((point, i) => {
      const time = make("small");
      time.textContent = `+${clock(point.at - start)}`;
      const what = make("bdi");
      what.textContent = point.says;
      const words = make("bdi", "words");
      words.textContent = point.text ?? "";
      setHidden(words, !point.text);
      const row = make("li", "", what, time, words);
      row.id = `nba-point-${point.seq}`;
      row.setAttribute("role", "option");
      row.addEventListener("click", () => void this.choose(i));
      this.list.append(row);
    });
    this.list.addEventListener("keydown", (event) => this.press(event));
  }

  private press(event: KeyboardEvent): void {
    const last = this.points.length - 1;
    const to = { ArrowDown: this.chosen + 1, ArrowUp: this.chosen - 1, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    void this.choose(Math.max(0, Math.min(last, to)));
  }

  private async choose(i: number): Promise<void> {
    this.mark(i);
    const request = ++this.requests;
    try {
      const found = await this.getPreview(String(this.points[i]?.seq));
      if (request === this.requests) this.draw(found);
    } catch (error) {
      if (request === this.requests) setText(this.summary, error instanceof Error ? error.message : String(error));
    }
  }

  private mark(i: number): void {
    this.list.children[this.chosen]?.setAttribute("aria-selected", "false");
    this.chosen = Math.max(0, i);
    const row = this.list.children[this.chosen];
    row?.setAttribute("aria-selected", "true");
    this.list.setAttribute("aria-activedescendant", row?.id ?? "");
    row?.scrollIntoView({ block: "nearest" });
  }

  private draw(found: Preview): void {
    this.summary.replaceChildren(
      ...found.lines.map((text) => {
        const line = make("p");
        line.textContent = text;
        return line;
      }),
    );
    const head = make("p", "head");
    const count = found.file_count;
    head.textContent = count > 0 ? trans._n("%1 file will change:", "%1 files will change:", count) : count === 0 ? trans.__("No file will change.") : "";
    this.files.replaceChildren(head, ...found.files.map(drawFile));
  }
}

function drawFile(file: FileChange): HTMLElement {
  const path = make("bdi", "path");
  path.textContent = file.path;
  const plus = make("span", "plus");
  plus.textContent = file.plus < 0 ? "" : `+${file.plus}`;
  const minus = make("span", "minus");
  minus.textContent = file.minus < 0 ? "" : `−${file.minus}`;
  const what = make("small");
  what.textContent = whatOf(file.what);
  const summary = make("summary", "", path, plus, minus, what);
  const diff = make("pre");
  for (const text of file.diff.split("\n")) {
    const line = make("span", text.startsWith("+") ? "plus" : text.startsWith("-") ? "minus" : "");
    line.textContent = `${text}\n`;
    diff.append(line);
  }
  if (!file.diff) diff.textContent = trans.__("No lines to compare.");
  return make("details", "", summary, diff);
}

function clock(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}
