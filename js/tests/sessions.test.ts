import { Widget } from "@lumino/widgets";
import { afterEach, expect, test, vi } from "vitest";
import type { Run, Session, Turn } from "../src/api";
import { LiveRuns } from "../src/live-runs";
import { Sessions } from "../src/sessions";
import { liveRun, visibleText } from "./mock";

const EVIL = "<img src=x onerror=alert(1)>";

afterEach(() => void (document.body.textContent = ""));

function turn(id: string, more: Partial<Turn> = {}): Turn {
  const updated_at = Date.now() / 1000 - 130;
  return { id, turn: 1, task: "Compare caches", state: "complete", is_live: false, updated_at, cost: 0.04, ...more };
}

async function show(sessions: Session[], live: Run[] = []) {
  const actions = {
    list: vi.fn(() => Promise.resolve(sessions)),
    rows: vi.fn((_sweep: string): Promise<readonly Session[]> => Promise.resolve([])),
    open: vi.fn(),
    place: () => "",
    stop: vi.fn().mockResolvedValue(undefined),
    resume: vi.fn().mockResolvedValue(undefined),
    rewind: vi.fn().mockResolvedValue(undefined),
    continue_: vi.fn().mockResolvedValue(undefined),
    rename: vi.fn().mockResolvedValue(undefined),
    export_: vi.fn().mockResolvedValue(undefined),
    delete_: vi.fn().mockResolvedValue(undefined),
    create: vi.fn(),
  };
  const runs = new LiveRuns(() => Promise.resolve(live));
  await runs.refresh();
  const widget = new Sessions(runs, actions);
  Widget.attach(widget, document.body);
  await widget.refresh();
  const rows = (): HTMLDetailsElement[] => [...widget.node.querySelectorAll<HTMLDetailsElement>("details")];
  const buttons = (): string[] =>
    [...widget.node.querySelectorAll<HTMLElement>("details[open] button")].filter((b) => !b.closest("[hidden]")).map((b) => b.textContent);
  const press = (label: string): void =>
    [...widget.node.querySelectorAll<HTMLElement>("details[open] button")].find((b) => b.textContent === label)?.click();
  const filter = (text: string): void => {
    const input = widget.node.querySelector("input");
    if (!input) return;
    input.value = text;
    input.dispatchEvent(new Event("input"));
  };
  return { actions, runs, widget, rows, buttons, press, filter, sessions };
}

test("a session shows its last task, state, turns, cost and age", async () => {
  const { rows } = await show([{ id: "s", session: "session_1", turns: [turn("s/turn_1"), turn("s/turn_2", { turn: 2, task: "And?" })] }]);
  const summary = rows()[0]?.querySelector("summary") as HTMLElement;
  expect([...summary.children].map((each) => each.textContent)).toEqual([
    "And?",
    "complete",
    "2 turns · $0.080 · 2 min. ago",
  ]);
  expect(summary.querySelector(".task")?.getAttribute("title")).toBe("And?\n\nsession_1");
});

test("a name that the user chose is shown", async () => {
  const { rows } = await show([{ id: "s", session: "caches", turns: [turn("s/turn_1")] }]);
  expect(rows()[0]?.querySelector("small")?.textContent).toBe("caches · 1 turn · $0.040 · 2 min. ago");
});

/** The visible groups: their headings, and the tasks in them. */
function groups(widget: Widget): [string, string[]][] {
  const shown = [...widget.node.querySelectorAll<HTMLElement>(".group")].filter((group) => !group.hidden);
  const tasks = (group: HTMLElement): string[] => [...group.querySelectorAll("summary .task")].map((task) => task.textContent);
  return shown.map((group) => [group.querySelector("h3")?.textContent ?? "", tasks(group)]);
}

test("running sessions come first, then today's, then earlier ones", async () => {
  vi.useFakeTimers({ toFake: ["Date"], now: new Date(2026, 4, 5, 12) });
  const at = (id: string, hours: number): Session => ({
    id,
    session: id,
    turns: [turn(`${id}/turn_1`, { task: id, updated_at: Date.now() / 1000 - hours * 3600 })],
  });
  const live = [liveRun("long/turn_1")];
  const { widget, runs } = await show([at("week", 170), at("long", 30), at("now", 1), at("night", 13)], live);
  expect(groups(widget)).toEqual([["Running", ["long"]], ["Today", ["now"]], ["Earlier", ["night", "week"]]]);
  live.pop();
  await runs.refresh();
  await vi.waitFor(() => expect(groups(widget)).toEqual([["Today", ["now"]], ["Earlier", ["night", "long", "week"]]]));
  vi.useRealTimers();
});

test("the focus follows a row to another group", async () => {
  const session = { id: "s", session: "s", turns: [turn("s/turn_1", { is_live: true })] };
  const live = [liveRun("s/turn_1")];
  const { widget, rows, sessions, runs } = await show([session], live);
  rows()[0]?.querySelector("summary")?.focus();
  sessions[0] = { ...session, turns: [turn("s/turn_1")] };
  live.pop();
  await runs.refresh();
  await vi.waitFor(() => expect(groups(widget).map(([name]) => name)).not.toContain("Running"));
  expect(document.activeElement).toBe(rows()[0]?.querySelector("summary"));
});

test("without sessions, the sidebar shows how to start", async () => {
  const { widget, actions, sessions } = await show([]);
  expect(visibleText(widget.node)).toContain("%load_ext nb_agents");
  [...widget.node.querySelectorAll("button")].find((each) => each.textContent === "New agent team…")?.click();
  expect(actions.create).toHaveBeenCalledOnce();
  sessions.push({ id: "s", session: "s", turns: [turn("s/turn_1")] });
  await widget.refresh();
  expect(visibleText(widget.node)).not.toContain("%load_ext");
});

test("untrusted text is escaped", async () => {
  const { widget } = await show([{ id: "s", session: EVIL, turns: [turn("s/turn_1", { task: EVIL, state: EVIL })] }]);
  expect(widget.node.textContent).toContain(EVIL);
  expect(widget.node.querySelector("img")).toBeNull();
});

test("a turn whose agents all wait for their providers has the mark of a waiting one", async () => {
  const says = "waiting for quota until 03:00:00";
  const { rows } = await show(
    [{ id: "s", session: "s", turns: [turn("s/turn_1", { state: "running", is_live: true })] }],
    [liveRun("s/turn_1", { says, waits: true })],
  );
  const state = rows()[0]?.querySelector("summary .state");
  expect([state?.textContent, state?.className]).toEqual([says, "state awaiting"]);
});

test("a live turn shows its state and can be stopped gracefully, then immediately", async () => {
  const live = [liveRun("s/turn_1", { says: "awaiting approval", status: "awaiting" })];
  const { buttons, press, rows, actions, runs } = await show(
    [{ id: "s", session: "s", turns: [turn("s/turn_1", { state: "running", is_live: true })] }],
    live,
  );
  expect(rows()[0]?.querySelector("summary .state")?.textContent).toBe("awaiting approval");
  expect(buttons()).toEqual(["1. Compare caches", "Stop", "Go back…", "Export"]);
  press("Stop");
  live[0] = liveRun("s/turn_1", { state: "stopping" });
  await runs.refresh();
  press("Stop now");
  expect(actions.stop.mock.calls).toEqual([
    ["s/turn_1", false],
    ["s/turn_1", true],
  ]);
});

test("only the last turn is resumed, and only when it is incomplete", async () => {
  const stopped = turn("s/turn_1", { state: "stopped" });
  const { buttons, press, actions, sessions, widget } = await show([{ id: "s", session: "s", turns: [stopped] }]);
  expect(buttons()).toEqual(["1. Compare caches", "Resume", "Go back…", "Continue…", "Rename…", "Export", "Delete…"]);
  press("Resume");
  press("Resume"); // while the first one is pending
  expect(actions.resume).toHaveBeenCalledExactlyOnceWith("s/turn_1");
  sessions[0] = { id: "s", session: "s", turns: [stopped, turn("s/turn_2", { turn: 2 })] };
  await widget.refresh();
  expect(buttons()).not.toContain("Resume");
});

test("a turn that is too long for its model offers what to do instead of a resume", async () => {
  const instead = "Fold it, use another model, or go back.";
  const long = turn("s/turn_1", { state: "failed", instead });
  const { buttons, widget, sessions } = await show([{ id: "s", session: "s", turns: [long] }]);
  expect(buttons()).toEqual(["1. Compare caches", "Go back…", "Continue…", "Rename…", "Export", "Delete…"]);
  expect(visibleText(widget.node)).toContain(instead);
  sessions[0] = { id: "s", session: "s", turns: [long, turn("s/turn_2", { turn: 2 })] };
  await widget.refresh();
  expect(visibleText(widget.node)).not.toContain(instead);
});

test("turns are opened and sessions deleted by their id", async () => {
  const { press, actions, sessions } = await show([{ id: "s", session: "s", turns: [turn("s/turn_1")] }]);
  press("1. Compare caches");
  press("Delete…");
  expect(actions.open).toHaveBeenCalledExactlyOnceWith("s/turn_1");
  expect(actions.delete_).toHaveBeenCalledExactlyOnceWith(sessions[0]);
});

test("the filter finds tasks, sessions and states, and reports no match", async () => {
  const { filter, rows, widget } = await show([
    { id: "a", session: "caches", turns: [turn("a/turn_1", { task: "Compare caches" })] },
    { id: "b", session: "other", turns: [turn("b/turn_1", { task: "Write a poem", state: "failed" })] },
  ]);
  const found = (text: string): number => (filter(text), rows().length);
  expect([found("POEM"), found("caches"), found("failed"), found("nothing")]).toEqual([1, 1, 1, 0]);
  expect(visibleText(widget.node)).toContain("No session matches");
  expect(found("")).toBe(2);
  expect(rows().map((row) => row.open)).toEqual([true, false]); // as before
});

test("open rows and the focus stay while the list changes", async () => {
  const first = { id: "a", session: "a", turns: [turn("a/turn_1")] };
  const { rows, sessions, widget } = await show([first]);
  const button = rows()[0]?.querySelector("button");
  button?.focus();
  const row = rows()[0];
  const insert = vi.spyOn(row?.parentElement as HTMLElement, "insertBefore");
  sessions.push({ id: "b", session: "b", turns: [turn("b/turn_1", { updated_at: Date.now() / 1000 })] });
  await widget.refresh();
  expect(rows()).toHaveLength(2);
  expect(document.activeElement).toBe(button);
  expect(insert.mock.calls.map(([node]) => node)).toEqual([rows()[0]]);
  expect(rows()[1]?.open).toBe(true);
});

test("at most a hundred sessions are drawn, with a note", async () => {
  const many = Array.from({ length: 150 }, (_, i) => ({ id: `${i}`, session: `s${i}`, turns: [turn(`${i}/turn_1`)] }));
  const { rows, widget } = await show(many);
  expect(rows()).toHaveLength(100);
  expect(visibleText(widget.node)).toContain("100 of 150");
});

test("a hidden sidebar requests no sessions", async () => {
  const live: Run[] = [];
  const { actions, runs, widget } = await show([], live);
  const before = actions.list.mock.calls.length;
  widget.hide();
  live.push(liveRun("a"));
  await runs.refresh();
  expect(actions.list).toHaveBeenCalledTimes(before);
  widget.show();
  expect(actions.list).toHaveBeenCalledTimes(before + 1);
});

/** A sweep of 300 rows, as listed by the server. */
function sweep(more: Partial<Run> = {}): Session {
  const run = liveRun("sweep", { says: "12 of 300 rows · 2 failed", rows: { total: 300, done: 10, failed: 2 }, ...more });
  return { id: "sweep", session: "my_sweep", turns: [], sweep: { ...run, is_live: run.state === "running", updated_at: Date.now() / 1000 - 130 } };
}

const rowOf = (name: string): Session => ({ id: `sweep/${name}`, session: name, turns: [turn(`sweep/${name}/turn_1`, { task: EVIL })] });

async function unfold(row: HTMLDetailsElement | undefined): Promise<void> {
  if (!row) return;
  row.open = true;
  row.dispatchEvent(new Event("toggle"));
  await vi.waitFor(() => expect(row.querySelectorAll("details")).not.toHaveLength(0));
}

test("a sweep is one entry with its progress, and requests its rows only when expanded", async () => {
  const { rows, actions } = await show([sweep({ state: "stopped" })]);
  const summary = rows()[0]?.querySelector("summary") as HTMLElement;
  expect([...summary.children].map((each) => each.textContent)).toEqual([
    "Compare caches",
    "stopped",
    "my_sweep · 12 of 300 rows · 2 failed · 2 min. ago",
  ]);
  expect(actions.rows).not.toHaveBeenCalled();
  actions.rows.mockResolvedValue([rowOf("one"), rowOf("two")]);
  await unfold(rows()[0]);
  expect(actions.rows).toHaveBeenCalledExactlyOnceWith("sweep");
  expect(visibleText(rows()[0] as HTMLElement)).toContain("2 of 300 rows, most recently used first.");
});

test("a sweep's row can be opened and exported, but not renamed or deleted", async () => {
  const { rows, actions, buttons, press, widget } = await show([sweep({ state: "stopped" })]);
  actions.rows.mockResolvedValue([rowOf("one")]);
  await unfold(rows()[0]);
  (rows()[1] as HTMLDetailsElement).open = true;
  expect(new Set(buttons())).toEqual(new Set([`1. ${EVIL}`, "Go back…", "Export"]));
  press(`1. ${EVIL}`);
  expect(actions.open).toHaveBeenCalledExactlyOnceWith("sweep/one/turn_1");
  expect(widget.node.querySelector("img")).toBeNull();
});

test("one row of a sweep is stopped gracefully, then immediately, and the others continue", async () => {
  const { rows, actions, buttons, press } = await show([sweep()], [sweep().sweep as Run]);
  const live = { id: "sweep/one", session: "one", turns: [turn("sweep/one/turn_1", { state: "running", is_live: true })] };
  actions.rows.mockResolvedValue([live, rowOf("two")]);
  await unfold(rows()[0]);
  for (const row of rows().slice(1)) row.open = true;
  const stops = (): string[] => buttons().filter((label) => label.startsWith("Stop"));
  expect(stops()).toEqual(["Stop", "Stop"]); // of the sweep, and of the live row
  const pressRow = (): void => [...(rows()[1] as HTMLElement).querySelectorAll<HTMLElement>("button")].find((b) => b.textContent.startsWith("Stop"))?.click();
  pressRow();
  await vi.waitFor(() => expect(stops()).toEqual(["Stop", "Stop now"]));
  press("Stop now");
  expect(actions.stop.mock.calls).toEqual([
    ["sweep/one/turn_1", false],
    ["sweep/one/turn_1", true],
  ]);
});

test("a live sweep shows its state and can be stopped gracefully, then immediately", async () => {
  const live = [sweep().sweep as Run];
  const { rows, actions, buttons, press, runs } = await show([sweep()], live);
  (rows()[0] as HTMLDetailsElement).open = true;
  expect(rows()[0]?.querySelector("summary .state")?.textContent).toBe("12 of 300 rows · 2 failed");
  expect(buttons()).toEqual(["Stop"]);
  press("Stop");
  live[0] = { ...(live[0] as Run), state: "stopping" };
  await runs.refresh();
  press("Stop now");
  expect(actions.stop.mock.calls).toEqual([
    ["sweep", false],
    ["sweep", true],
  ]);
});

test("the rows of a live sweep are requested again on progress, but not each second", async () => {
  vi.useFakeTimers({ toFake: ["Date"] });
  const { rows, actions, sessions, widget } = await show([sweep()], [sweep().sweep as Run]);
  actions.rows.mockResolvedValue([rowOf("one")]);
  await unfold(rows()[0]);
  const after = async (ms: number, says: string): Promise<number> => {
    vi.setSystemTime(Date.now() + ms);
    sessions[0] = sweep({ says });
    await widget.refresh();
    return actions.rows.mock.calls.length;
  };
  expect([await after(1000, "13 of 300 rows"), await after(9000, "14 of 300 rows"), await after(9000, "14 of 300 rows")]).toEqual([1, 2, 2]);
  vi.useRealTimers();
});

test("sweeps are sorted among the sessions by use, and the filter finds them", async () => {
  const at = (ago: number) => turn("", { updated_at: Date.now() / 1000 - ago, task: "Write a poem" });
  const { rows, filter } = await show([
    { id: "old", session: "old", turns: [at(500)] },
    sweep({ state: "stopped" }),
    { id: "new", session: "new", turns: [at(10)] },
  ]);
  const names = (): (string | undefined)[] => rows().map((row) => row.querySelector(".task")?.getAttribute("title")?.split("\n").at(-1));
  expect(names()).toEqual(["new", "my_sweep", "old"]);
  for (const text of ["my_sweep", "compare caches", "stopped"]) {
    filter(text);
    expect(names()).toEqual(["my_sweep"]);
  }
});

test("a sweep to show is expanded", async () => {
  const { rows, widget } = await show([sweep(), { id: "s", session: "s", turns: [turn("s/turn_1")] }]);
  await widget.reveal("sweep");
  expect(rows()[0]?.open).toBe(true);
});
