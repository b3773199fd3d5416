/** With a language that puts each text in brackets, whatever is outside of brackets was not translated. */

import { YNotebook } from "@jupyter/ydoc";
import { Widget } from "@lumino/widgets";
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from "vitest";

vi.mock("@jupyterlab/apputils", () => ({
  Dialog: { cancelButton: () => ({}), okButton: (of: object) => of, warnButton: (of: object) => of },
  InputDialog: { getText: vi.fn(async () => ({ value: "", button: { accept: false } })) },
  MainAreaWidget: vi.fn(),
  Notification: { error: vi.fn(), info: vi.fn(), manager: { notify: vi.fn() } },
  showDialog: vi.fn(async () => ({ button: { accept: false }, value: null })),
}));
vi.mock("@jupyterlab/services", () => ({ ServerConnection: {} }));
vi.mock("@jupyterlab/ui-components", () => ({ LabIcon: vi.fn() }));

import { InputDialog, Notification, showDialog } from "@jupyterlab/apputils";
import { addCodeButtons } from "../src/answer-code";
import type { Session } from "../src/api";
import { NOT_YOURS, Refused } from "../src/api";
import type { Change } from "../src/cell-changes";
import { CellProposals } from "../src/cell-proposals";
import type { RevertPlan } from "../src/cells-api";
import { LiveRuns } from "../src/live-runs";
import { NewTeamForm, firstOf } from "../src/new-team-form";
import { announce } from "../src/notices";
import { runAgain } from "../src/outputs";
import { addPlaces } from "../src/page";
import type { GateQuestion, PieceKind } from "../src/panel-types";
import { RewindBody } from "../src/rewind";
import { Sessions } from "../src/sessions";
import { withoutKernel } from "../src/state";
import { makeStatusItem } from "../src/status-bar";
import { makeStopButton } from "../src/stop-all";
import { makeStrip } from "../src/strip";
import { sweepWithoutKernel } from "../src/sweep-state";
import { ENGLISH, setBundle } from "../src/text";
import { makeTimeline } from "../src/timeline";
import { makeTranscripts } from "../src/transcripts";
import { RUNNING, SWEEP, agent, liveRun, show, sweepRow } from "./mock";

const bracketed = (text: string): string => `⟦${text}⟧`;

beforeAll(() =>
  setBundle(
    {
      __: (text, ...args) => bracketed(ENGLISH.__(text, ...args)),
      _n: (one, many, count, ...args) => bracketed(ENGLISH._n(one, many, count, ...args)),
    },
    "en",
  ),
);
afterAll(() => setBundle(ENGLISH, "en"));
afterEach(() => {
  document.body.replaceChildren();
  vi.clearAllMocks();
});

const ATTRIBUTES = ["title", "placeholder", "label", "aria-label", "aria-description"];

/** Return all texts in an element, hidden ones too. */
function textsIn(el: Element): string[] {
  const attributes = ATTRIBUTES.map((name) => el.getAttribute(name) ?? "");
  const texts = [...el.childNodes].flatMap((node) => {
    if (node instanceof Element) return textsIn(node);
    return node.nodeType === Node.TEXT_NODE ? [node.textContent ?? ""] : [];
  });
  return [...attributes, ...texts];
}

/** Return all strings in a value. */
function stringsIn(value: unknown): string[] {
  if (typeof value === "string") return [value];
  return typeof value === "object" && value !== null ? Object.values(value).flatMap(stringsIn) : [];
}

/** Return the texts of which a part is neither translated nor data. */
function untranslated(texts: readonly string[], data: unknown): string[] {
  const known = stringsIn(data)
    .filter((text) => text.length > 1)
    .sort((a, b) => b.length - a.length);
  return texts.filter((text) => {
    let rest = text;
    for (let before = ""; before !== rest; ) rest = (before = rest).replace(/⟦[^⟦⟧]*⟧/g, "");
    rest = rest.replace(/⟦[^⟦⟧]*$|^[^⟦⟧]*⟧/g, ""); // split around a field
    for (const each of known) rest = rest.replaceAll(each, "");
    return /\p{L}/u.test(rest);
  });
}

function expectTranslated(el: Element, data: unknown): void {
  const texts = textsIn(el);
  expect(texts.join()).toContain("⟦");
  expect(untranslated(texts, data)).toEqual([]);
}

const turn = { id: "s/turn_1", turn: 1, task: "Compare caches", state: "stopped", is_live: false, cost: 0.04, rewinds: 3, at: 12 };
const now = (): number => Date.now() / 1000;
const SESSIONS: Session[] = [
  { id: "s", session: "session_1", turns: [{ ...turn, updated_at: now() }] },
  { id: "t", session: "session_2", turns: [{ ...turn, id: "t/turn_1", state: "running", is_live: true, updated_at: now() }] },
  { id: "ask", session: "ask", turns: [], sweep: { ...liveRun("ask"), rows: { total: 9, done: 3, failed: 1 } as never, is_live: true, updated_at: now() } },
];
const ASKED: GateQuestion[] = (["stage", "approval", "budget", "text"] as const).map((asks) => ({
  id: asks, asks, name: "gather", prompt: "Use it?", countdown: "58 s, then denied",
}));

describe("in another language", () => {
  test("the panel of a run has only translated texts", () => {
    const agents = [
      agent("ada", { model: "model-1", stop: { now: false }, depth: 0 }),
      agent("ben", { model: "model-1", stop: { now: true }, depth: 1 }),
      agent("cleo", { model: "model-1", pending: true }),
    ];
    const state = { ...RUNNING, agents, gates: ASKED, said: { text: "Hurry", read: "read by ada" } };
    const { el, button } = show(state);
    expectTranslated(el, state);
    button.click();
    for (const each of el.querySelectorAll<HTMLElement>(".one, .gate .approve")) each.click();
    expectTranslated(el, state);
    expect(untranslated([withoutKernel(state)].flatMap(stringsIn), [state, "stopped", "cut"])).toEqual([]);
  });

  test("an open transcript and timeline have only translated texts", async () => {
    const kinds: PieceKind[] = ["thought", "writing", "output", "call"];
    const pieces = kinds.map((kind) => ({ id: kind, kind, title: "", text: "caches" }));
    const state = { ...RUNNING, run: "translated" };
    const life = new AbortController().signal;
    const transcripts = makeTranscripts(life, async () => ({ pieces, end: 1, more: false }));
    const broken = makeTranscripts(life, () => Promise.reject(new Error("broken")));
    const timeline = makeTimeline(life, () => Promise.reject(new Error("broken")));
    document.body.append(transcripts.el, broken.el, timeline.el);
    for (const part of [transcripts, broken, timeline]) part.draw(state);
    transcripts.toggle("critic");
    broken.draw({ ...state, run: "broken" });
    broken.toggle("critic");
    timeline.el.querySelector("button")?.click();
    await vi.waitFor(() => expect(document.body.textContent).toMatch(/Calls.*transcript can't be read.*timeline can't be read/s));
    expectTranslated(document.body, [state, "caches", "broken"]);
  });

  test("the panel of a sweep has only translated texts", () => {
    const rows = ["sky", "moon"].map((id) => sweepRow(id, { model: "model-1", again: true, state: "failed", score: 1 }));
    const state = { ...SWEEP, rows, open: { row: "sky", title: "sky", state: { ...RUNNING, run: "run-sky", agents: [agent("ada", { model: "model-1" })] } } };
    const { el, model } = show(state);
    expectTranslated(el, state);
    const search = el.querySelector("input[type=search]") as HTMLInputElement;
    search.value = "moon";
    search.dispatchEvent(new Event("input"));
    model.update({ ...state, hold: "unpause", steering: { ...state.steering!, max_cost: 1, models: [{ name: "openai", is_paused: true }] } });
    expect(el.querySelector(".more:not([hidden])")?.textContent).toBe("⟦1 of 2 rows shown⟧");
    expectTranslated(el, state);
    expect(untranslated([sweepWithoutKernel(state)].flatMap(stringsIn), [state, "stopped", "cut"])).toEqual([]);
  });

  test("the sidebar, the status bar and the toolbar have only translated texts", async () => {
    const live = [liveRun("t/turn_1", { status: "awaiting" }), liveRun("ask", { rows: {} as never })];
    const runs = new LiveRuns(async () => live);
    await runs.refresh();
    const sessions = vi.fn(async (): Promise<Session[]> => []);
    const actions = { list: sessions, place: (id: string) => (id === "t/turn_1" ? "report.ipynb" : ""), rows: async () => [] };
    const widget = new Sessions(runs, actions as never);
    Widget.attach(widget, document.body);
    await widget.refresh();
    const data = [SESSIONS, live, "%load_ext nb_agents", "%%agents", "report.ipynb"];
    expectTranslated(widget.node, data);
    sessions.mockResolvedValue(SESSIONS);
    await widget.refresh();
    for (const row of widget.node.querySelectorAll("details")) row.open = true;
    await widget.refresh();
    expectTranslated(widget.node, data);
    expect(widget.title.caption).toBe("⟦Agent sessions⟧");
    expectTranslated(makeStatusItem(runs, () => {}).item.node, data);
    expectTranslated(makeStopButton(runs, () => {}).node, data);
    widget.dispose();
  });

  test("the commands and dialogs have only translated texts", async () => {
    const labels: string[] = [];
    const commands = { addCommand: (_: string, { label }: { label: string }) => void labels.push(label) };
    const category = vi.fn();
    const app = { commands, shell: { add: vi.fn() }, serviceManager: { serverSettings: { baseUrl: "" } } };
    const refused = vi.fn().mockRejectedValue(new Refused("Runs ada.", { cause: NOT_YOURS }));
    const preview = { point: 1, points: [], lines: [], files: [], file_count: 2, kept: { recipe: null }, status: "running" };
    const api = { resume: refused, rewind: async () => preview, sessions: async () => [] };
    const runs = new LiveRuns(async () => []);
    const actions = addPlaces({ app, api, runs, notebooks: null, palette: { addItem: category } } as never);
    const [session] = SESSIONS as [Session];
    for (const act of [actions.rename, actions.continue_, actions.delete_]) await act(session);
    await actions.resume("s/turn_1");
    await actions.rewind("s/turn_1");
    const options = vi.mocked(showDialog).mock.calls.map(([each]) => each ?? {});
    expect(options).toHaveLength(4);
    const texts = options.flatMap(({ title, body, buttons }) => [
      String(title),
      ...(body instanceof Widget ? textsIn(body.node) : [String(body)]),
      ...(buttons ?? []).map(({ label }) => label ?? ""),
    ]);
    const asked = stringsIn(vi.mocked(InputDialog.getText).mock.calls);
    const categories = category.mock.calls.map(([item]) => item.category);
    expect(untranslated([...labels, ...categories, ...texts, ...asked], [SESSIONS, "Runs ada."])).toEqual([]);
  });

  test("the bodies of dialogs have only translated texts", () => {
    const files = [{ path: "notes.md", what: "changed", plus: 1, minus: 2, diff: "" } as const];
    const points = [{ seq: 1, at: 100, agent: "ada", says: "the start" }];
    const preview = { point: 1, points, lines: ["Saved."], files, file_count: 1, kept: { recipe: null }, status: "running" };
    expectTranslated(new RewindBody(vi.fn(), preview).node, preview);
    const choices = {
      providers: [{ type: "gemini", where: "GOOGLE_API_KEY is set", models: ["gemini-2.5-flash"] }],
      types: [{ type: "openai", variables: ["OPENAI_API_KEY"], found: "", base_url: "", takes_address: true }],
      tools: [{ key: "search", label: "Search the web" }],
    };
    for (const each of [choices, { ...choices, providers: [] }]) {
      const form = new NewTeamForm(each, firstOf(each, new Set()), new Set(), "");
      expectTranslated(form.node, [each, "demo", "https://…/v1"]);
    }
  });

  test("proposed changes of cells have only translated texts", async () => {
    const notebook = YNotebook.create() as YNotebook;
    for (const id of ["c0", "c1"]) notebook.insertCell(notebook.cells.length, { id, cell_type: "code", source: "sum", metadata: {} });
    const widgets = notebook.cells.map(({ id }) => ({ model: { id }, node: document.body.appendChild(document.createElement("div")) }));
    const content = { widgets, model: { sharedModel: notebook }, modelContentChanged: { connect: vi.fn() } };
    const panel = { content, isDisposed: false, disposed: { connect: vi.fn() }, title: { label: "a.ipynb" }, context: {} };
    const change = { agent: "ada", how: "", cell: "c0", base: "sum", source: "max", cell_type: "code", why: "faster" };
    const changes: Change[] = [
      { ...change, number: 1, op: "insert", after: "c0" },
      { ...change, number: 2, op: "replace" },
      { ...change, number: 3, op: "replace", base: "min" },
      { ...change, number: 4, op: "delete" },
      { ...change, number: 5, op: "move", after: "c1" },
      { ...change, number: 6, op: "replace", cell: "gone" },
    ];
    const plan: RevertPlan = {
      open: true,
      mine: true,
      kept: ["c0", "gone"].map((cell) => ({ cell, agent: "ada", why: cell === "gone" ? "gone" : "edited", diff: "-sum\n+max" })),
    };
    const api = {
      proposals: async () => changes,
      claim: async () => ({ open: true, mine: false }),
      revertPlan: vi.fn(async () => plan).mockResolvedValueOnce({ open: true, mine: false }),
      tryPost: async () => ({ refusal: "", isUnreachable: false }),
    };
    const proposals = new CellProposals(api as never, vi.fn(), null, vi.fn());
    const part = { cells: { requests: [], open: [1, 2, 3, 4, 5, 6], revert: true } };
    proposals.take("s/turn_1", part, { panel, cell: widgets[0] } as never, true);
    await vi.waitFor(() => expect(document.querySelectorAll(".nba-change").length).toBe(7));
    const press = (label: string): void =>
      [...document.querySelectorAll("button")].find(({ textContent }) => textContent === bracketed(label))?.click();
    press("Accept");
    press("Take back here");
    await vi.waitFor(() => expect(document.body.textContent).toMatch(/Another page decides.*was not taken back/s));
    expectTranslated(document.body, changes);
  });

  test("strips, notifications and buttons at code have only translated texts", async () => {
    const strip = makeStrip(new AbortController().signal, { again: vi.fn(), stop: vi.fn(), show: vi.fn() });
    for (const draw of [() => strip.offerAgain(), () => strip.offerStop(), () => strip.showResumed(2, "complete")]) {
      draw();
      expectTranslated(strip.el, []);
    }
    const answer = document.body.appendChild(document.createElement("div"));
    answer.innerHTML = "<pre>sum</pre>";
    addCodeButtons(answer, { insert: vi.fn(), replace: vi.fn(), target: () => "" });
    answer.querySelectorAll("button").forEach((button) => void button.dispatchEvent(new Event("focus")));
    expectTranslated(answer, ["sum"]);
    const notify = vi.fn();
    const run = liveRun("a");
    const needs = { notifications: { notify }, claim: async () => true, isSeen: () => false, run: async () => run, open: vi.fn() };
    await announce({ live: [], waiting: [run], ended: [run] }, needs);
    runAgain({ of: () => undefined } as never, answer);
    const said = [...notify.mock.calls, ...vi.mocked(Notification.info).mock.calls];
    expect(said).toHaveLength(3);
    expect(untranslated(stringsIn(said), [run, "warning", "info", "success"])).toEqual([]);
  });
});
