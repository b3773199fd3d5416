import { EditorState } from "@codemirror/state";
import { EditorView } from "@codemirror/view";
import { expect, test, vi } from "vitest";
import { type Author, type Authors, Refused } from "../src/api";
import { BLAME, offerBlame, partsOf } from "../src/blame";

vi.mock("@jupyterlab/services", () => ({}));
vi.mock("../src/icon", () => ({ TEAM_ICON: undefined }));

const ADA: Author = {
  agent: "ada",
  call: "2.0",
  tool: "edit_file",
  model: "gpt-5-mini",
  at: 1_764_000_000,
  session: "s",
  turn: 3,
  prompt: "Write",
};
const BEN: Author = { ...ADA, agent: "<b>ben</b>", call: "", tool: "", model: "", prompt: "" };

test("a call is described without its empty parts", () => {
  expect(partsOf(ADA)).toEqual(["ada", "gpt-5-mini", "edit_file 2.0", expect.stringMatching(/2025/), "s/3", "“Write”"]);
  expect(partsOf(BEN)).toEqual(["<b>ben</b>", expect.stringMatching(/2025/), "s/3"]);
});

/** Open a text in an editor, and return the editor and a function that executes the command. */
function open(text: string, authors: (path: string, text: string) => Promise<Authors>) {
  const view = new EditorView({ state: EditorState.create({ doc: text }), parent: document.body });
  let command = { execute: (): void => undefined, isToggled: (): boolean => false };
  const app = {
    shell: { currentWidget: { content: { editor: { editor: view } }, context: { path: "drive:a/b.md" } } },
    serviceManager: { contents: { localPath: (path: string) => path.replace("drive:", "") } },
    commands: { addCommand: (id: string, given: typeof command) => id === BLAME && (command = given) },
  };
  offerBlame(app as never, { authors }, null);
  return { view, toggle: () => command.execute(), isToggled: () => command.isToggled() };
}

function shown(view: EditorView): (string | null)[] {
  return [...view.dom.querySelectorAll<HTMLElement>(".nba-author")].map((each) => each.title.split("\n")[0] ?? null);
}

const status = (view: EditorView): string => view.dom.querySelector("[role=status]")?.textContent ?? "";

test("lines have the authors of the server until they are edited", async () => {
  const authors = vi.fn(() => Promise.resolve({ calls: [ADA, BEN], lines: [null, 0, 0, 1], is_current: true }));
  const { view, toggle, isToggled } = open("mine\na\nb\nc", authors);
  toggle();
  await vi.waitFor(() => expect(shown(view)).toEqual(["ada", "ada", "<b>ben</b>"]));
  expect(authors).toHaveBeenCalledWith("a/b.md", "mine\na\nb\nc");
  expect(isToggled()).toBe(true);
  expect(view.dom.querySelector(".nba-authors b")).toBeNull();
  expect(status(view)).toBe("Line 1: from you, or a program that is not an agent");

  view.dispatch({ changes: { from: 5, insert: "x" }, selection: { anchor: 5 } });
  expect(shown(view)).toEqual(["ada", "<b>ben</b>"]);
  expect(status(view)).toMatch(/^Line 2: from you.*The file on disk differs from this text\.$/);
  view.dispatch({ changes: { from: 7, insert: "\n" } });
  expect(shown(view)).toEqual(["ada", "<b>ben</b>"]);

  toggle();
  expect(shown(view)).toEqual([]);
  expect([isToggled(), status(view)]).toEqual([false, ""]);
});

test("a refusal is shown instead of authors", async () => {
  const { view, toggle } = open("a", () => Promise.reject(new Refused("There is no such file.")));
  toggle();
  await vi.waitFor(() => expect(status(view)).toBe("There is no such file."));
});

test("a file that is too large is not sent", async () => {
  const authors = vi.fn();
  const { view, toggle } = open("x".repeat(800_000), authors);
  toggle();
  await vi.waitFor(() => expect(status(view)).toMatch(/too large/));
  expect(authors).not.toHaveBeenCalled();
});
