/** Marks problems in team files and recipes while the user types. Nothing is run. */

import { type Diagnostic, linter, nextDiagnostic } from "@codemirror/lint";
import type { Extension, Text } from "@codemirror/state";
import { type EditorView, keymap } from "@codemirror/view";
import { type Api, type Finding, Refused } from "./api";

/** Delay between the last key and the check. */
const DELAY_MS = 500;
/** Limit of a checked text, in characters. */
const MAX_CHECKED = 50_000;

/** Whether YAML looks like a team file or recipe. Other formats have agents, steps and stages, too. */
export function isOurs(yaml: string): boolean {
  const isTeam = /^agents?[ \t]*:/m.test(yaml) && /^[ \t-]+(?:backend|id)[ \t]*:/m.test(yaml);
  const isRecipe = /^(?:steps|stages)[ \t]*:/m.test(yaml) && /^description[ \t]*:/m.test(yaml);
  return yaml.length <= MAX_CHECKED && (isTeam || isRecipe);
}

/**
 * Create the extension for the editor of a file.
 *
 * @param fileOf Returns the path of the edited file, or "".
 */
export function makeCheck(api: Pick<Api, "check">, fileOf: () => string): Extension {
  const find = async (view: EditorView): Promise<readonly Diagnostic[]> => {
    const { doc } = view.state;
    const [file, text] = [fileOf(), doc.toString()];
    if (!/\.ya?ml$/i.test(file) || !isOurs(text)) return [];
    try {
      return (await api.check(text, file)).map((each) => diagnosticOf(each, doc));
    } catch (error) {
      if (error instanceof Refused) return []; // the server can't be reached, or has no such folder
      throw error;
    }
  };
  return [linter(find, { delay: DELAY_MS }), keymap.of([{ key: "F8", run: nextDiagnostic }])];
}

/** Position a finding at its word. */
export function diagnosticOf({ severity, what, line, column }: Finding, doc: Pick<Text, "line" | "lines">): Diagnostic {
  const { from, text } = doc.line(Math.min(line, doc.lines));
  // Python counts characters, JavaScript counts UTF-16 code units.
  const end = text.trimEnd().length;
  const at = [...text].slice(0, column - 1).join("").length;
  // A finding at the end of a line marks the whole line.
  const start = at < end ? at : text.length - text.trimStart().length;
  const word = /^(?:"[^"]*"|'[^']*'|[^\s,\]}:]+)/.exec(text.slice(start))?.[0] ?? text.slice(start, end);
  return { from: from + start, to: from + start + word.length, severity, message: what, source: "nb-agents check" };
}
