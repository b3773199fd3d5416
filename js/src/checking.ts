/** Marks what a check finds in a team file or a recipe, as it is typed; the server runs nothing of it. */

import { type Diagnostic, linter, nextDiagnostic } from "@codemirror/lint";
import type { Extension, Text } from "@codemirror/state";
import { type EditorView, keymap } from "@codemirror/view";
import { type Api, type Finding, Refused } from "./api";

/** Between the last key and the check. */
const DELAY_MS = 500;
/** Characters of a text that is checked. */
const MAX_CHECKED = 50_000;

/** Whether YAML is a team's or a recipe's, as far as it is written: others have agents, steps and stages, too. */
export function isOurs(yaml: string): boolean {
  const isTeam = /^agents?[ \t]*:/m.test(yaml) && /^[ \t-]+(?:backend|id)[ \t]*:/m.test(yaml);
  const isRecipe = /^(?:steps|stages)[ \t]*:/m.test(yaml) && /^description[ \t]*:/m.test(yaml);
  return yaml.length <= MAX_CHECKED && (isTeam || isRecipe);
}

/**
 * Make what an editor of a whole file needs.
 *
 * @param fileOf Returns the path of what the editor shows, or "".
 */
export function makeCheck(api: Pick<Api, "check">, fileOf: () => string): Extension {
  const find = async (view: EditorView): Promise<readonly Diagnostic[]> => {
    const { doc } = view.state;
    const [file, text] = [fileOf(), doc.toString()];
    if (!/\.ya?ml$/i.test(file) || !isOurs(text)) return [];
    try {
      return (await api.check(text, file)).map((each) => diagnosticOf(each, doc));
    } catch (error) {
      if (error instanceof Refused) return []; // the server is away, or has no such folder
      throw error;
    }
  };
  return [linter(find, { delay: DELAY_MS }), keymap.of([{ key: "F8", run: nextDiagnostic }])];
}

/** Place a finding at the word that it is about. */
export function diagnosticOf({ severity, what, line, column }: Finding, doc: Pick<Text, "line" | "lines">): Diagnostic {
  const { from, text } = doc.line(Math.min(line, doc.lines));
  // Python counts characters, and JavaScript their halves.
  const end = text.trimEnd().length;
  const at = [...text].slice(0, column - 1).join("").length;
  // What is missing at a line's end is wrong with all of it.
  const start = at < end ? at : text.length - text.trimStart().length;
  const word = /^(?:"[^"]*"|'[^']*'|[^\s,\]}:]+)/.exec(text.slice(start))?.[0] ?? text.slice(start, end);
  return { from: from + start, to: from + start + word.length, severity, message: what, source: "nb-agents check" };
}
