/** Shows in a file's editor which agent's call wrote each line, in a gutter and for the line with the cursor. */

import type { JupyterFrontEnd } from "@jupyterlab/application";
import type { ICommandPalette } from "@jupyterlab/apputils";
import { Compartment, type Extension, type Range, RangeSet, StateEffect, StateField, type Text, type Transaction } from "@codemirror/state";
import { type EditorView, GutterMarker, type Panel, ViewPlugin, type ViewUpdate, gutter, showPanel } from "@codemirror/view";
import { type Api, type Authors, type Author, Refused } from "./api";
import { make, setText } from "./dom";
import { TEAM_ICON } from "./icon";
import { languageTag, trans } from "./text";

export const BLAME = "nb-agents:blame";

/** Limit of a text, in characters. The server accepts 1 MB. */
const MAX_TEXT = 700_000;
/** Delay between the last key and a request. */
const DELAY_MS = 700;
/** Number of colours in the style sheet. */
const COLOURS = 6;

type Ask = (text: string) => Promise<Authors>;

/** The editor of a file, and its path on the server. */
interface OpenFile {
  readonly view: EditorView;
  readonly path: string;
}

/** Add the command, which shows or hides the authors in the current file's editor. */
export function offerBlame(app: JupyterFrontEnd, api: Pick<Api, "authors">, palette: ICommandPalette | null): void {
  const slots = new WeakMap<EditorView, Compartment>();
  const isShown = ({ view }: OpenFile): boolean => {
    const shown = slots.get(view)?.get(view.state);
    return Array.isArray(shown) && shown.length > 0;
  };
  app.commands.addCommand(BLAME, {
    label: trans.__("Show Who Wrote Each Line"),
    icon: TEAM_ICON,
    describedBy: { args: {} },
    isEnabled: () => openFile(app) !== undefined,
    isToggleable: true,
    isToggled: () => {
      const file = openFile(app);
      return file !== undefined && isShown(file);
    },
    execute: () => {
      const file = openFile(app);
      if (file) toggle(file, slots, isShown(file) ? [] : blameOf((text) => api.authors(file.path, text)));
    },
  });
  palette?.addItem({ command: BLAME, category: trans.__("Agents") });
}

function openFile({ shell, serviceManager }: JupyterFrontEnd): OpenFile | undefined {
  const widget = shell.currentWidget as Partial<{
    content: Partial<{ editor: Partial<{ editor: EditorView }> }>;
    context: { readonly path: string };
  }> | null;
  const view = widget?.content?.editor?.editor;
  const path = widget?.context?.path;
  return view && path !== undefined ? { view, path: serviceManager.contents.localPath(path) } : undefined;
}

function toggle({ view }: OpenFile, slots: WeakMap<EditorView, Compartment>, extension: Extension): void {
  const slot = slots.get(view);
  if (slot) {
    view.dispatch({ effects: slot.reconfigure(extension) });
    return;
  }
  const made = new Compartment();
  slots.set(view, made);
  view.dispatch({ effects: StateEffect.appendConfig.of(made.of(extension)) });
}

/** What an editor shows. */
interface Shown {
  readonly marks: RangeSet<LineMark>;
  /** Instead of the authors, or "". */
  readonly message: string;
  readonly isCurrent: boolean;
}

const NOTHING: Shown = { marks: RangeSet.empty, message: "", isCurrent: true };
const SHOW = StateEffect.define<Shown>();

const SHOWN = StateField.define<Shown>({
  create: () => ({ ...NOTHING, message: trans.__("Looking up who wrote each line…") }),
  update: (shown, change) => change.effects.reduce((last, each) => (each.is(SHOW) ? each.value : last), moved(shown, change)),
});

/** Move the marks with their lines. A line that was edited loses its mark. */
function moved(shown: Shown, { changes, docChanged, newDoc }: Transaction): Shown {
  if (!docChanged) return shown;
  const marks = shown.marks.map(changes).update({
    filter: (from, _, mark) => from === newDoc.lineAt(from).from && newDoc.lineAt(from).text === mark.text,
  });
  return { ...shown, marks, isCurrent: false };
}

/** The mark of a line that is from an agent. */
class LineMark extends GutterMarker {
  /**
   * @param author The call that wrote the line.
   * @param text The line.
   * @param label The agent's name on the first of several lines from the call, or "".
   * @param colour The number of the agent's colour.
   */
  constructor(
    readonly author: Author,
    readonly text: string,
    private readonly label: string,
    private readonly colour: number,
  ) {
    super();
  }

  override eq(other: LineMark): boolean {
    return other.author === this.author && other.label === this.label;
  }

  override toDOM(): Node {
    const mark = make("span", `nba-author nba-author-${this.colour}`);
    setText(mark, this.label);
    mark.title = partsOf(this.author).join("\n");
    return mark;
  }
}

/** Return what is shown for a text. */
function shownFor({ calls, lines, is_current }: Authors, doc: Text): Shown {
  const agents = [...new Set(calls.map(({ agent }) => agent))];
  const marks: Range<LineMark>[] = [];
  lines.slice(0, doc.lines).forEach((position, i) => {
    const author = position === null ? undefined : calls[position];
    if (!author) return;
    const { from, text } = doc.line(i + 1);
    const label = position === lines[i - 1] ? "" : author.agent;
    marks.push(new LineMark(author, text, label, agents.indexOf(author.agent) % COLOURS).range(from));
  });
  const message = marks.length > 0 ? "" : trans.__("No line of this file is from an agent.");
  return { marks: RangeSet.of(marks), message, isCurrent: is_current };
}

/** Describe a call: the agent, its model, tool, time and turn, and what it was asked. */
export function partsOf({ agent, model, tool, call, at, session, turn, prompt }: Author): string[] {
  const time = new Intl.DateTimeFormat(languageTag(), { dateStyle: "medium", timeStyle: "short" }).format(at * 1000);
  const parts = [agent, model, [tool, call].filter(Boolean).join(" "), time, `${session}/${turn}`];
  return [...parts, prompt && `“${prompt}”`].filter(Boolean);
}

/** Create the extension of an editor. */
function blameOf(ask: Ask): Extension[] {
  return [
    SHOWN,
    gutter({ class: "nba-authors", markers: (view) => view.state.field(SHOWN).marks }),
    showPanel.of(makePanel),
    ViewPlugin.define((view) => new Follower(view, ask)),
  ];
}

/** Requests the authors now, and after each pause in typing. */
class Follower {
  private timer: number | undefined;
  private isGone = false;

  constructor(
    private readonly view: EditorView,
    private readonly ask: Ask,
  ) {
    void this.follow();
  }

  update({ docChanged }: ViewUpdate): void {
    if (!docChanged) return;
    window.clearTimeout(this.timer);
    this.timer = window.setTimeout(() => void this.follow(), DELAY_MS);
  }

  destroy(): void {
    this.isGone = true;
    window.clearTimeout(this.timer);
  }

  private async follow(): Promise<void> {
    const { doc } = this.view.state;
    const shown = await this.find(doc);
    // A change of the text in the meantime starts another request.
    if (!this.isGone && this.view.state.doc.eq(doc)) this.view.dispatch({ effects: SHOW.of(shown) });
  }

  private async find(doc: Text): Promise<Shown> {
    if (doc.length > MAX_TEXT) return { ...NOTHING, message: trans.__("The file is too large to show who wrote each line.") };
    try {
      return shownFor(await this.ask(doc.toString()), doc);
    } catch (error) {
      if (error instanceof Refused) return { ...NOTHING, message: error.message };
      throw error;
    }
  }
}

/** The line below the text that describes the author of the line with the cursor. */
function makePanel(view: EditorView): Panel {
  const dom = make("div", "nba-author-line");
  dom.setAttribute("role", "status");
  const draw = (): void => setText(dom, lineText(view));
  draw();
  return { dom, update: draw };
}

function lineText({ state }: EditorView): string {
  const { marks, message, isCurrent } = state.field(SHOWN);
  if (message) return message;
  const line = state.doc.lineAt(state.selection.main.head);
  let found: LineMark | undefined;
  marks.between(line.from, line.from, (_from, _to, mark) => {
    found = mark;
  });
  const author = found
    ? trans.__("Line %1: %2", line.number, partsOf(found.author).join(" · "))
    : trans.__("Line %1: from you, or a program that is not an agent", line.number);
  return isCurrent ? author : `${author} — ${trans.__("The file on disk differs from this text.")}`;
}
