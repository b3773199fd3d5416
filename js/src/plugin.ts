/** The JupyterLab extension. It is optional. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from "@jupyterlab/application";
import { ICommandPalette, IToolbarWidgetRegistry, Notification } from "@jupyterlab/apputils";
import { IFileBrowserFactory } from "@jupyterlab/filebrowser";
import {
  EditorExtensionRegistry,
  IEditorExtensionRegistry,
  IEditorLanguageRegistry,
} from "@jupyterlab/codemirror";
import { ILauncher } from "@jupyterlab/launcher";
import { INotebookCellExecutor, INotebookTracker, type NotebookPanel } from "@jupyterlab/notebook";
import { IRenderMimeRegistry } from "@jupyterlab/rendermime";
import type { IRenderMime } from "@jupyterlab/rendermime-interfaces";
import { ISettingRegistry } from "@jupyterlab/settingregistry";
import { IStatusBar } from "@jupyterlab/statusbar";
import { ITranslator } from "@jupyterlab/translation";
import { Api, type Session } from "./api";
import { makeTurnFiles } from "./files";
import { codeActions } from "./answer-code";
import { offerAskTeam } from "./ask-team";
import { offerBlame } from "./blame";
import { CellProposals } from "./cell-proposals";
import { Cells } from "./cells";
import { makeCheck } from "./checking";
import type { Kernel } from "./kernel";
import { LiveRuns } from "./live-runs";
import { runAgain, notifyIfCleared } from "./outputs";
import { addPlaces, attemptWithTrust } from "./page";
import { makeProse } from "./prose";
import { RunRenderer, WIDGET_MIME } from "./renderer";
import { followSettings } from "./settings";
import { setBundle } from "./text";
import { INbAgents } from "./token";
import { SWEEP_MIME, TURN_MIME, Watcher } from "./watch";

const PROBLEM_MS = 10_000;
/** Before the widgets' -10, which would show "model not found" after the end of their kernel. */
const RANK = -20;

export { INbAgents };

const PLUGIN = "nb-agents:plugin";

const plugin: JupyterFrontEndPlugin<INbAgents> = {
  id: PLUGIN,
  description: "Shows agent runs in the outputs of notebooks, and lists all runs in the sidebar.",
  autoStart: true,
  provides: INbAgents,
  requires: [IRenderMimeRegistry],
  optional: [
    INotebookTracker,
    ICommandPalette,
    IStatusBar,
    IToolbarWidgetRegistry,
    IFileBrowserFactory,
    ILauncher,
    INotebookCellExecutor,
    ITranslator,
    ISettingRegistry,
  ],
  activate(
    app: JupyterFrontEnd,
    rendermime: IRenderMimeRegistry,
    notebooks: INotebookTracker | null,
    palette: ICommandPalette | null,
    statusBar: IStatusBar | null,
    toolbars: IToolbarWidgetRegistry | null,
    browsers: IFileBrowserFactory | null,
    launcher: ILauncher | null,
    executor: INotebookCellExecutor | null,
    translator: ITranslator | null,
    registry: ISettingRegistry | null,
  ): INbAgents {
    if (translator) setBundle(translator.load("nb_agents"), translator.languageCode ?? "en");
    if (registry) followSettings(registry, PLUGIN).catch((error: unknown) => console.warn("nb_agents: the settings can't be loaded.", error));
    lookUpNoHosts();
    const { contents, serverSettings } = app.serviceManager;
    const api = new Api(serverSettings, () => {
      const name = app.serviceManager.user.identity?.name ?? "";
      return name.startsWith("Anonymous ") ? "" : name;
    });
    const runs = new LiveRuns(() => api.runs());
    const watcher = new Watcher((ids, signal) => {
      void runs.refresh(); // a cell shows a run, which may be new
      return api.view(ids, signal);
    });
    const shown = new Set<RunRenderer>();
    const cells = new Cells(notebooks, (path) => contents.localPath(path));
    const report = (problem: string): string => Notification.error(problem, { autoClose: PROBLEM_MS });
    const redrawCard = (turn: string): void => [...shown].forEach((each) => void each.redrawCard(turn));
    const proposals = new CellProposals(api, report, executor, redrawCard);
    if (notebooks) offerAskTeam(notebooks);
    offerBlame(app, api, palette);
    const notebookOf = (output: Node): NotebookPanel | undefined =>
      notebooks?.find((panel) => panel.node.contains(output));
    const surroundings = {
      rendermime,
      api,
      files: makeTurnFiles(app, browsers),
      watcher,
      shown,
      localPath: (path: string) => contents.localPath(path),
      kernelOf: (output: Node) => kernelOf(notebookOf(output)),
      widgetsOf: (output: Node) => widgetsOf(notebookOf(output)),
      resume: (turn: string) => void actions.resume(turn),
      rewind: (turn: string, at?: number) => actions.rewind(turn, at),
      continue_: (turn: string) => void actions.continue_(sessionOf(turn)),
      attempt: attemptWithTrust,
      link: (command: string, args: string) => void app.commands.execute(command, JSON.parse(args)),
      code: codeActions(notebooks, (output) => cells.of(output), report),
      runAgain: (output: Node) => runAgain(cells, output),
      followLive: (id: string, life: AbortSignal, told: (isLive: boolean) => void) => {
        const tell = (): void => told(runs.live.some((run) => run.id === id));
        life.addEventListener("abort", runs.listen(tell));
        void runs.refresh().then(tell);
      },
      followResumes: (id: string, life: AbortSignal, told: (turn: number, state: string) => void) =>
        followResumes(id, life, told, { runs, api }),
      stop: (turn: string) => void actions.stop(turn, false),
      open: (turn: string) => actions.open(turn),
      left: (turn: string, output: Node) => {
        const place = cells.of(output);
        if (place) void notifyIfCleared(turn, place, { runs, actions });
      },
      parts: (turn: string, parts: unknown, output: Node, isLive: boolean) =>
        // A turn that was started from the panel is shown in no cell.
        proposals.take(turn, parts, cells.of(output) ?? cells.ofSession(turn), isLive),
      addCell: (text: string) => {
        const commands = ["notebook:insert-cell-below", "notebook:replace-selection", "notebook:enter-edit-mode"];
        void app.commands.execute("apputils:run-all-enabled", { commands, args: { text } });
      },
    };
    rendermime.addFactory(
      {
        safe: true,
        mimeTypes: [TURN_MIME, SWEEP_MIME],
        createRenderer: (options) => new RunRenderer(surroundings, options),
      },
      RANK,
    );
    const isSeen = (id: string): boolean => [...shown].some((renderer) => renderer.isSeen(id));
    const optional = { notebooks, palette, statusBar, toolbars, launcher };
    const actions = addPlaces({ app, api, runs, rendermime, cells, isSeen, ...optional });
    return {
      get live() {
        return runs.live;
      },
      listen: (listener) => runs.listen(({ live }) => listener(live)),
      stop: (id, now = false) => actions.stop(id, now),
      resume: (id) => actions.resume(id),
      open: (id) => actions.open(id),
    };
  },
};

/** Prevents DNS lookups for shown links, because a host name can leak a secret. */
function lookUpNoHosts(): void {
  const meta = document.createElement("meta");
  meta.httpEquiv = "x-dns-prefetch-control";
  meta.content = "off";
  document.head.append(meta);
}

/** Ask the server for a turn's resumes, now and whenever a run of its session starts, changes or ends. */
function followResumes(
  id: string,
  life: AbortSignal,
  told: (turn: number, state: string) => void,
  { runs, api }: { readonly runs: LiveRuns; readonly api: Api },
): void {
  let before: string | undefined;
  const look = async (): Promise<void> => {
    const live = runs.live.filter((run) => sessionOf(run.id).id === sessionOf(id).id);
    const now = live.map((run) => `${run.id} ${run.state}`).join("\n");
    if (now === before) return;
    before = now;
    const later = await api.run(id).then(
      (run) => run.resumed_in,
      () => undefined, // the server can't access the turn
    );
    if (later && !life.aborted) told(later.turn, later.state);
  };
  life.addEventListener("abort", runs.listen(look));
  void look();
}

function sessionOf(turn: string): Pick<Session, "id" | "session"> {
  const names = turn.split("/").slice(0, -1);
  return { id: names.join("/"), session: names.at(-1) ?? "" };
}

/** The kernel of a notebook. JupyterLab's types require more than our messages have. */
function kernelOf(panel: NotebookPanel | undefined): Kernel | undefined {
  return (panel?.sessionContext.session?.kernel ?? undefined) as Kernel | undefined;
}

/** The renderer of widgets in a notebook, installed by the kernel's widget manager. */
async function widgetsOf(panel: NotebookPanel | undefined): Promise<IRenderMime.IRendererFactory | undefined> {
  await panel?.sessionContext.ready;
  await new Promise((resolve) => setTimeout(resolve)); // the manager waits for the same event, and is notified first
  return kernelOf(panel) && panel?.content.rendermime.getFactory(WIDGET_MIME);
}

const cells: JupyterFrontEndPlugin<void> = {
  id: "nb-agents:cells",
  description: "Edits %%agents cells as text or YAML, and checks team files.",
  autoStart: true,
  requires: [IEditorExtensionRegistry, IEditorLanguageRegistry],
  activate(app: JupyterFrontEnd, extensions: IEditorExtensionRegistry, languages: IEditorLanguageRegistry): void {
    const fixed = EditorExtensionRegistry.createImmutableExtension;
    extensions.addExtension({ name: "nb-agents:prose", factory: () => fixed(makeProse(languages)) });
    const api = new Api(app.serviceManager.serverSettings);
    extensions.addExtension({
      name: "nb-agents:check",
      factory: ({ inline, model }) => (inline ? null : fixed(makeCheck(api, () => fileOf(app, model)))),
    });
  },
};

/** The path of the file in an editor's model, or "". */
function fileOf({ shell, serviceManager }: JupyterFrontEnd, model: unknown): string {
  for (const widget of shell.widgets("main")) {
    const { context } = widget as { readonly context?: { readonly path: string; readonly model: unknown } };
    if (context && context.model === model) return serviceManager.contents.localPath(context.path);
  }
  return "";
}

export default [plugin, cells];
