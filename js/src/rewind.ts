/**
 * Going back to a point of a turn: a dialog with its points, what would become of each, and room for a word.
 *
 * All texts are a model's or a person's, and are set as text.
 */

import { Dialog, showDialog } from "@jupyterlab/apputils";
import { Widget } from "@lumino/widgets";
import type { Api } from "./api";
import { make, setHidden, setText } from "./dom";

export interface Point {
  readonly seq: number;
  readonly at: number;
  readonly agent: string;
  readonly says: string;
}

export interface FileChange {
  readonly path: string;
  readonly what: "back" | "gone" | "changed";
  /** Lines; -1 where they can't be counted. */
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
  /** How the turn stands, in a word. */
  readonly status: string;
}

export interface Choice {
  readonly to: string;
  readonly say: string;
  readonly agent?: string;
  /** How often to go on from there, as a sweep. */
  readonly times?: number;
  /** Whether calls in flight of a live turn are cut. */
  readonly now?: boolean;
}

/** The last point of a turn. */
const END = "the end";

const MAX_TIMES = 100;

const LIVE = ["running", "awaiting", "stopping"];

const WHAT = { back: "is there again", gone: "is gone", changed: "is as it was" };

/**
 * Let a person choose a point; resolves to it, or to nothing.
 *
 * @param look Reads what a rewind to a point would do.
 * @param at The number of the event that is chosen first; by default the last point.
 */
export async function chooseRewind(look: (to: string) => Promise<Preview>, at?: number): Promise<Choice | undefined> {
  const first = await look(at === undefined ? END : String(at));
  const body = new RewindBody(look, first);
  const { button } = await showDialog({
    title: "Go back to here…",
    body,
    buttons: [Dialog.cancelButton(), Dialog.okButton({ label: "Go back and on from there" })],
    focusNodeSelector: "[role=listbox]",
  });
  return button.accept ? body.getValue() : undefined;
}

/** Read of the server what a rewind would do. */
export function previewOf(api: Api, turn: string): (to: string) => Promise<Preview> {
  return (to) => api.rewind(turn, { to, preview: true }) as Promise<Preview>;
}

export class RewindBody extends Widget implements Dialog.IBodyWidget<Choice> {
  private readonly list = make("ul");
  private readonly says = make("div", "says");
  private readonly files = make("div", "files");
  private readonly word = make("textarea");
  private readonly to = make("select");
  private readonly times = make("input");
  private readonly now = make("input");
  private readonly points: readonly Point[];
  private chosen = 0;
  private asked = 0;

  constructor(
    private readonly look: (to: string) => Promise<Preview>,
    first: Preview,
  ) {
    super();
    this.addClass("nba-rewind");
    this.points = first.points;
    this.makeList();
    this.says.setAttribute("role", "status");
    this.word.rows = 2;
    this.word.placeholder = "A word for the agents, if you like";
    this.word.setAttribute("aria-label", this.word.placeholder);
    this.to.setAttribute("aria-label", "Who reads it");
    for (const agent of ["", ...new Set(this.points.map((point) => point.agent).filter(Boolean))]) {
      const option = make("option");
      option.value = agent;
      option.textContent = agent || "all agents";
      this.to.append(option);
    }
    setHidden(this.to, first.kept.recipe !== null);
    this.times.type = "number";
    this.times.min = "1";
    this.times.max = String(MAX_TIMES);
    this.times.value = "1";
    const often = make("label", "", this.times);
    often.prepend("Try it ");
    often.append(" times");
    this.now.type = "checkbox";
    const cut = make("label", "", this.now);
    cut.append(" Cut the calls in flight");
    cut.title = "It is live, and is stopped first: without this, its calls in flight finish";
    setHidden(cut, !LIVE.includes(first.status));
    const side = make("div", "side", this.says, this.files);
    this.node.append(make("div", "both", this.list, side), make("div", "word", this.word, this.to, often, cut));
    this.mark(this.points.findIndex((point) => point.seq === first.point));
    this.draw(first);
  }

  getValue(): Choice {
    const say = this.word.value.trim();
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
    this.list.setAttribute("aria-label", "Points of the turn");
    this.list.tabIndex = 0;
    this.points.forEach((point, i) => {
      const time = make("small");
      time.textContent = `+${clock(point.at - start)}`;
      const what = make("bdi");
      what.textContent = point.says;
      const row = make("li", "", what, time);
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
    const asked = ++this.asked;
    try {
      const found = await this.look(String(this.points[i]?.seq));
      if (asked === this.asked) this.draw(found);
    } catch (error) {
      if (asked === this.asked) setText(this.says, error instanceof Error ? error.message : String(error));
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
    this.says.replaceChildren(
      ...found.lines.map((text) => {
        const line = make("p");
        line.textContent = text;
        return line;
      }),
    );
    const head = make("p", "head");
    const count = found.file_count;
    head.textContent = count > 0 ? `${count} ${count === 1 ? "file" : "files"} will be different:` : count === 0 ? "No file will be different." : "";
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
  what.textContent = WHAT[file.what];
  const summary = make("summary", "", path, plus, minus, what);
  const diff = make("pre");
  for (const text of file.diff.split("\n")) {
    const line = make("span", text.startsWith("+") ? "plus" : text.startsWith("-") ? "minus" : "");
    line.textContent = `${text}\n`;
    diff.append(line);
  }
  if (!file.diff) diff.textContent = "No lines to compare.";
  return make("details", "", summary, diff);
}

function clock(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}
