/** The JupyterLab extension. Everything of nb_agents works without it. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from "@jupyterlab/application";
import { ICommandPalette, IToolbarWidgetRegistry } from "@jupyterlab/apputils";
import { IFileBrowserFactory } from "@jupyterlab/filebrowser";
import {
  EditorExtensionRegistry,
  IEditorExtensionRegistry,
  IEditorLanguageRegistry,
} from "@jupyterlab/codemirror";
import { ILauncher } from "@jupyterlab/launcher";
import { INotebookTracker, type NotebookPanel } from "@jupyterlab/notebook";
import { IRenderMimeRegistry } from "@jupyterlab/rendermime";
import type { IRenderMime } from "@jupyterlab/rendermime-interfaces";
import { IStatusBar } from "@jupyterlab/statusbar";
import { Api, type Session } from "./api";
import { makeTurnFiles } from "./files";
import { Cells } from "./cells";
import { makeCheck } from "./checking";
import type { Kernel } from "./kernel";
import { LiveRuns } from "./live-runs";
import { runAgain, tellIfCleared } from "./outputs";
import { addPlaces, attemptTrusting } from "./page";
import { makeProse } from "./prose";
import { RunRenderer, WIDGET_MIME } from "./renderer";
import { SWEEP_MIME, TURN_MIME, Watcher } from "./watch";

/** Before the widgets' -10, which would show "model not found" once their kernel is gone. */
const RANK = -20;

const plugin: JupyterFrontEndPlugin<void> = {
  id: "nb-agents:plugin",
  description: "Shows the runs of agents in a notebook's outputs, and all of them beside it.",
  autoStart: true,
  requires: [IRenderMimeRegistry],
  optional: [INotebookTracker, ICommandPalette, IStatusBar, IToolbarWidgetRegistry, IFileBrowserFactory, ILauncher],
  activate(
    app: JupyterFrontEnd,
    rendermime: IRenderMimeRegistry,
    notebooks: INotebookTracker | null,
    palette: ICommandPalette | null,
    statusBar: IStatusBar | null,
    toolbars: IToolbarWidgetRegistry | null,
    browsers: IFileBrowserFactory | null,
    launcher: ILauncher | null,
  ): void {
    lookUpNoHosts();
    const { contents, serverSettings } = app.serviceManager;
    const api = new Api(serverSettings);
    const runs = new LiveRuns(() => api.runs());
    const watcher = new Watcher((ids, signal) => {
      void runs.refresh(); // a cell has shown a run, which may have just begun
      return api.view(ids, signal);
    });
    const shown = new Set<RunRenderer>();
    const cells = new Cells(notebooks, (path) => contents.localPath(path));
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
      attempt: attemptTrusting,
      link: (command: string, args: string) => void app.commands.execute(command, JSON.parse(args)),
      runAgain: (output: Node) => runAgain(cells, output),
      followLive: (id: string, life: AbortSignal, told: (isLive: boolean) => void) => {
        const tell = (): void => told(runs.live.some((run) => run.id === id));
        life.addEventListener("abort", runs.listen(tell));
        void runs.refresh().then(tell);
      },
      stop: (turn: string) => void actions.stop(turn, false),
      open: (turn: string) => actions.open(turn),
      left: (turn: string, output: Node) => {
        const place = cells.of(output);
        if (place) void tellIfCleared(turn, place, { runs, actions });
      },
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
  },
};

/** A browser would look up the hosts of links that a page shows, and a name of a host can tell a secret. */
function lookUpNoHosts(): void {
  const meta = document.createElement("meta");
  meta.httpEquiv = "x-dns-prefetch-control";
  meta.content = "off";
  document.head.append(meta);
}

function sessionOf(turn: string): Pick<Session, "id" | "session"> {
  const names = turn.split("/").slice(0, -1);
  return { id: names.join("/"), session: names.at(-1) ?? "" };
}

/** The kernel of a notebook; JupyterLab's own types ask for more than a message of ours has. */
function kernelOf(panel: NotebookPanel | undefined): Kernel | undefined {
  return (panel?.sessionContext.session?.kernel ?? undefined) as Kernel | undefined;
}

/** What draws the widgets of a notebook's kernel: the manager of that kernel's widgets has put it there. */
async function widgetsOf(panel: NotebookPanel | undefined): Promise<IRenderMime.IRendererFactory | undefined> {
  await panel?.sessionContext.ready;
  await new Promise((resolve) => setTimeout(resolve)); // the manager waits for the same, and gets it first
  return kernelOf(panel) && panel?.content.rendermime.getFactory(WIDGET_MIME);
}

const cells: JupyterFrontEndPlugin<void> = {
  id: "nb-agents:cells",
  description: "Edits cells of agents as the prose or the YAML that they are, and checks files of teams.",
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

/** The path of the file that an editor's model is of, or "". */
function fileOf({ shell, serviceManager }: JupyterFrontEnd, model: unknown): string {
  for (const widget of shell.widgets("main")) {
    const { context } = widget as { readonly context?: { readonly path: string; readonly model: unknown } };
    if (context && context.model === model) return serviceManager.contents.localPath(context.path);
  }
  return "";
}

export default [plugin, cells];
