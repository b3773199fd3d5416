/** Commands, status bar, toolbar and sidebar. */

import type { JupyterFrontEnd } from "@jupyterlab/application";
import {
  Dialog,
  type ICommandPalette,
  type IToolbarWidgetRegistry,
  InputDialog,
  MainAreaWidget,
  Notification,
  showDialog,
} from "@jupyterlab/apputils";
import type { ILauncher } from "@jupyterlab/launcher";
import type { INotebookTracker } from "@jupyterlab/notebook";
import type { IRenderMimeRegistry } from "@jupyterlab/rendermime";
import type { IStatusBar } from "@jupyterlab/statusbar";
import { Widget } from "@lumino/widgets";
import { type Api, Refused, type Run, type Session, withTrust } from "./api";
import type { Cells } from "./cells";
import { makeClaims } from "./claims";
import { make } from "./dom";
import { TEAM_ICON } from "./icon";
import type { LiveRuns } from "./live-runs";
import { makeNewTeam } from "./new-team";
import { announce } from "./notices";
import { chooseRewind, previewOf } from "./rewind";
import type { Actions } from "./session-rows";
import { Sessions } from "./sessions";
import { makeStatusItem } from "./status-bar";
import { settings } from "./settings";
import { makeStopButton, stopAll } from "./stop-all";
import { trans } from "./text";
import { TURN_MIME } from "./watch";

const NEW_TEAM = "nb-agents:new-team";
/** How long an error is shown. Without a time, it would appear only in the list of notifications. */
const PROBLEM_MS = 10_000;

export interface Page {
  readonly app: JupyterFrontEnd;
  readonly api: Api;
  readonly runs: LiveRuns;
  readonly rendermime: IRenderMimeRegistry;
  readonly cells: Cells;
  /** Whether the user can see the state of a turn or sweep. */
  isSeen(id: string): boolean;
  /** Optional parts of the application. */
  readonly notebooks: INotebookTracker | null;
  readonly palette: ICommandPalette | null;
  readonly statusBar: IStatusBar | null;
  readonly toolbars: IToolbarWidgetRegistry | null;
  readonly launcher: ILauncher | null;
}

/** Add them all, and return the actions on turns and sessions. */
export function addPlaces(page: Page): Actions {
  const { app, api, runs } = page;
  const open = (turn: string): void => void attempt(() => (goTo(page, turn) ? undefined : openTurn(page, turn)));
  const stop = (now: boolean): Promise<void> => attempt(async () => refuse(await stopAll(api, runs, now || isImmediate())));
  const actions = makeActions(page, open, () => sidebar.refresh());
  const sidebar: Sessions = new Sessions(runs, actions);
  sidebar.title.icon = TEAM_ICON;
  app.shell.add(sidebar, "left", { rank: 650, type: "Agent sessions" });
  const show = (): void => app.shell.activateById(sidebar.id);

  page.statusBar?.registerStatusItem("nb-agents:runs", makeStatusItem(runs, show));
  page.toolbars?.addFactory("Notebook", "nb-agents-stop", () => makeStopButton(runs, (now) => void stop(now)));
  addCommand(page, "nb-agents:stop-all", trans.__("Stop All Agent Runs"), () => stop(false));
  addCommand(page, "nb-agents:stop-all-now", trans.__("Stop All Agent Runs Now"), () => stop(true));
  addCommand(page, "nb-agents:resume-last", trans.__("Resume the Last Agent Run"), () => resumeLast(actions));
  addCommand(page, "nb-agents:show-sessions", trans.__("Show Agent Sessions"), show);
  addCommand(page, NEW_TEAM, trans.__("New Agent Team"), ({ cwd }) => attempt(() => makeNewTeam(app, api, String(cwd ?? ""))));
  page.launcher?.add({ command: NEW_TEAM, rank: 0 });
  const needs = {
    notifications: Notification.manager,
    claim: makeClaims(app.serviceManager.serverSettings.baseUrl, (navigator as Partial<Navigator>).locks),
    isSeen: page.isSeen,
    run: (id: string) => api.run(id),
    open(run: Run): void {
      if (run.rows && !page.cells.find(run.id, true)) void sidebar.reveal(run.id).then(show);
      else open(run.id);
    },
  };
  runs.listen((change) => void attempt(() => announce(change, needs)));
  return actions;
}

function isImmediate(): boolean {
  return settings().stopLevel === "immediate";
}

type Execute = (args: { readonly cwd?: unknown }) => unknown;

function addCommand({ app, palette }: Page, command: string, label: string, execute: Execute): void {
  app.commands.addCommand(command, { label, execute, icon: TEAM_ICON, describedBy: { args: {} } });
  palette?.addItem({ command, category: trans.__("Agents") });
}

/** Create the actions on turns and sessions. `changed` is called after each change. */
function makeActions(
  { api, runs, app, notebooks, cells }: Page,
  open: (turn: string) => void,
  changed: () => Promise<void>,
): Actions {
  const changing = (change: () => Promise<unknown>): Promise<void> =>
    attempt(async () => {
      await change();
      await Promise.all([runs.refresh(), changed()]);
    });
  const goOn = async (act: (trust: boolean) => Promise<{ readonly id: string }>): Promise<void> => {
    const turn = await withTrust(act, confirmTrust);
    if (turn) open(turn.id);
  };
  return {
    list: () => api.sessions(foldersOf(notebooks, (path) => app.serviceManager.contents.localPath(path))),
    rows: (sweep) => api.rowsOf(sweep),
    open,
    place: (turn) => cells.name(turn),
    stop: (turn, now) =>
      changing(async () => refuse(await api.post(turn, "stop", { immediate: now || isImmediate(), source: "widget" }))),
    resume: (turn) => changing(() => goOn((trust) => api.resume(turn, trust))),
    async rewind(turn, at) {
      await attempt(async () => {
        const choice = await chooseRewind(previewOf(api, turn), at);
        const begin = (trust: boolean) => api.rewind(turn, { ...choice, trust }) as Promise<{ readonly id: string }>;
        if (choice) await changing(() => goOn(begin));
      });
    },
    async continue_(session) {
      const task = await askTask(session.session);
      if (task) await changing(() => goOn((trust) => api.continueSession(session.id, task, trust)));
    },
    async rename(session) {
      const name = await askText(trans.__("Rename %1", session.session), trans.__("New name:"), trans.__("Rename"), session.session);
      if (name && name !== session.session) await changing(() => api.renameSession(session.id, name));
    },
    export_: (session) => attempt(async () => download(await api.exportSession(session.id), `${session.session}.zip`)),
    async delete_(session) {
      if (await confirmDelete(session)) await changing(() => api.deleteSession(session.id));
    },
    create: () => void app.commands.execute(NEW_TEAM),
  };
}

/** Resume the latest incomplete turn. */
async function resumeLast({ list, resume }: Actions): Promise<void> {
  await attempt(async () => {
    const last = (await list()).flatMap(({ turns }) => turns.slice(-1));
    const left = last.filter((turn) => turn.state !== "complete" && !turn.is_live && !turn.instead);
    const [latest] = left.sort((a, b) => (b.updated_at ?? 0) - (a.updated_at ?? 0));
    if (!latest) throw new Refused(trans.__("There is nothing to resume. The last turn of every session is complete or live, or too long for its model."));
    await resume(latest.id);
  });
}

/** Go to the cell that shows a turn or sweep. Returns whether an open notebook has such a cell. */
function goTo({ app, cells }: Page, id: string): boolean {
  const place = cells.find(id, true);
  if (!place) return false;
  const { panel, cell } = place;
  app.shell.activateById(panel.id);
  panel.content.deselectAll();
  panel.content.activeCellIndex = panel.content.widgets.indexOf(cell);
  void panel.content.scrollToCell(cell, "start").catch(() => {}); // the notebook may have been closed
  return true;
}

/** Show a turn in a separate tab: its panel while it is live, and then its card. */
async function openTurn({ app, rendermime }: Page, turn: string): Promise<void> {
  const id = `nb-agents-turn:${turn}`;
  const [session, number] = turn.split("/").slice(-2);
  if (![...app.shell.widgets("main")].some((widget) => widget.id === id)) {
    const content = rendermime.createRenderer(TURN_MIME);
    const tab = new MainAreaWidget({ content });
    tab.id = id;
    tab.title.label = /^turn_[0-9]+$/.test(number ?? "") ? trans.__("turn %1 · %2", number?.slice("turn_".length), session) : (number ?? "");
    tab.title.icon = TEAM_ICON;
    tab.title.closable = true;
    content.addClass("nba-tab");
    app.shell.add(tab, "main");
    await content.renderModel(rendermime.createModel({ data: { [TURN_MIME]: { path: turn } } }));
  }
  app.shell.activateById(id);
}

function foldersOf(notebooks: INotebookTracker | null, localPath: (path: string) => string): string[] {
  const folders = new Set<string>();
  notebooks?.forEach(({ context }) => {
    folders.add(localPath(context.path).split("/").slice(0, -1).join("/"));
  });
  return [...folders].filter(Boolean).slice(0, 100);
}

async function askText(title: string, label: string, okLabel: string, text = ""): Promise<string> {
  const { value, button } = await InputDialog.getText({ title, label, okLabel, text });
  return button.accept ? (value ?? "").trim() : "";
}

/** Ask for a task, with a large text box. */
async function askTask(session: string): Promise<string> {
  const text = document.createElement("textarea");
  text.className = "nba-ask";
  text.rows = 8;
  text.placeholder = trans.__("The next task for the agents");
  text.setAttribute("aria-label", text.placeholder);
  // Enter adds a line. Ctrl+Enter or Cmd+Enter presses the dialog's button.
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.ctrlKey && !event.metaKey) event.stopPropagation();
  });
  const body = new Widget({ node: make("div", "", text) });
  const buttons = [Dialog.cancelButton(), Dialog.okButton({ label: trans.__("Continue") })];
  const { button } = await showDialog({ title: trans.__("Continue %1", session), body, buttons, focusNodeSelector: "textarea" });
  return button.accept ? text.value.trim() : "";
}

async function confirmDelete(session: Session): Promise<boolean> {
  const body = trans._n(
    "%2, with its turn and all files of its agents, can't be restored.",
    "%2, with its %1 turns and all files of its agents, can't be restored.",
    session.turns.length,
    session.session,
  );
  const buttons = [Dialog.cancelButton(), Dialog.warnButton({ label: trans.__("Delete") })];
  const { button } = await showDialog({ title: trans.__("Delete the session?"), body, buttons, defaultButton: 0 });
  return button.accept;
}

/** Show what a session of another user would run, and ask whether to trust it. */
async function confirmTrust(question: string): Promise<boolean> {
  const body = document.createElement("pre");
  body.className = "nba-question";
  body.textContent = question;
  const buttons = [Dialog.cancelButton(), Dialog.warnButton({ label: trans.__("Trust and continue") })];
  const title = trans.__("A session that you have not made");
  const { button } = await showDialog({ title, body: new Widget({ node: body }), buttons, defaultButton: 0 });
  return button.accept;
}

function download(file: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(file);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

function refuse(problem: string): void {
  if (problem) throw new Refused(problem);
}

/** Call an action, and show its error. */
async function attempt<T>(act: () => T | Promise<T>): Promise<T | undefined> {
  try {
    return await act();
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    Notification.error(error.message, { autoClose: PROBLEM_MS });
    return undefined;
  }
}

/** Call an action, and again with trust if the session needs it and the user agrees. */
export function attemptWithTrust<T>(act: (trust: boolean) => Promise<T>): Promise<T | undefined> {
  return attempt(() => withTrust(act, confirmTrust));
}
