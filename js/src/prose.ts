/** Edits %%agents cells as text or, for recipes, as YAML instead of Python. */

import { Compartment, type Extension, Prec } from "@codemirror/state";
import {
  Decoration,
  type DecorationSet,
  EditorView,
  MatchDecorator,
  type PluginValue,
  ViewPlugin,
  type ViewUpdate,
} from "@codemirror/view";
import type { IEditorLanguageRegistry } from "@jupyterlab/codemirror";

export type Kind = "task" | "values" | "";

const MIME_TYPES = { task: "text/x-ipythongfm", values: "text/x-yaml" };

/** Matches a variable, `{{name}}`, and a file or cell that the agents may read, `@path` or `@cell:3`. */
export const MARKED = /(?<!\\)\{\{\s*[^\W\d]\w*[^{}\n]*\}\}|(?<![\w@.])@(?:cell:[\w-]+|[~\w./-]*[\w/])/g;

/** Return the kind of a cell from its first line, or "" for other cells. */
export function kindOf(firstLine: string): Kind {
  if (!/^%%agents(\s|$)/.test(firstLine)) return "";
  return /\s(--recipe|-r)([\s=]|$)/.test(firstLine) ? "values" : "task";
}

/** Create the editor extension. It has no effect in other cells. */
export function makeProse(languages: IEditorLanguageRegistry): Extension {
  const slot = new Compartment();
  const follower = ViewPlugin.define((view) => new Follower(view, slot, languages));
  return [Prec.highest(slot.of([])), follower];
}

/** Applies the kind of the first line to an editor. */
class Follower implements PluginValue {
  private kind: Kind = "";
  private isGone = false;

  constructor(
    view: EditorView,
    private readonly slot: Compartment,
    private readonly languages: IEditorLanguageRegistry,
  ) {
    void this.follow(view);
  }

  update({ docChanged, view }: ViewUpdate): void {
    if (docChanged) void this.follow(view);
  }

  destroy(): void {
    this.isGone = true;
  }

  private async follow(view: EditorView): Promise<void> {
    const kind = kindOf(view.state.doc.line(1).text);
    if (kind === this.kind) return;
    this.kind = kind;
    const made = kind ? await extensionsOf(kind, this.languages) : await Promise.resolve([]);
    if (this.kind === kind && !this.isGone) view.dispatch({ effects: this.slot.reconfigure(made) });
  }
}

async function extensionsOf(kind: "task" | "values", languages: IEditorLanguageRegistry): Promise<Extension[]> {
  const language = await languages.getLanguage(MIME_TYPES[kind]).catch(() => null);
  const look = EditorView.editorAttributes.of({ class: `nba-cell nba-${kind}` });
  const marks = kind === "task" ? [MARKS] : [];
  return [...(language?.support ? [language.support] : []), EditorView.lineWrapping, look, ...marks];
}

const MATCHES = new MatchDecorator({
  regexp: MARKED,
  decorate(add, from, to, match, { state }) {
    if (from > state.doc.line(1).to) add(from, to, match[0].startsWith("@") ? FILE : VARIABLE);
  },
});
const FILE = Decoration.mark({ class: "nba-file" });
const VARIABLE = Decoration.mark({ class: "nba-variable" });

const MARKS = ViewPlugin.define(
  (view) => ({
    marks: MATCHES.createDeco(view),
    update(changed: ViewUpdate) {
      this.marks = MATCHES.updateDeco(changed, this.marks);
    },
  }),
  { decorations: (value: { readonly marks: DecorationSet }) => value.marks },
);
