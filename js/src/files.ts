/** The files of turns: a read-only drive, and the viewers of its files. */

import type { JupyterFrontEnd } from "@jupyterlab/application";
import { MainAreaWidget } from "@jupyterlab/apputils";
import type { IFileBrowserFactory } from "@jupyterlab/filebrowser";
import { type Contents, Drive, type ServerConnection } from "@jupyterlab/services";

const DRIVE = "nb-agents";

/** Files whose viewers run and fetch nothing. Others are shown as text. */
const SHOWN = /\.(?:csv|tsv|ipynb|json|geojson|png|jpe?g|gif|webp|svg|pdf)$/i;
const TEXT = /\.(?:txt|md|markdown|py|r|jl|js|ts|sh|sql|html?|xml|ya?ml|toml|ini|cfg|css|tex|log|c|h|cpp|rs|go|java)$/i;

/** Access to the files named on a card or panel. */
export interface TurnFiles {
  /** Return the URL of a file. The path is relative to the turn's directory. */
  address(turn: string, path: string): string;
  open(turn: string, path: string): void;
  /** Show all files of a turn. Undefined if the front end can't. */
  readonly browse: ((turn: string) => void) | undefined;
}

/** JupyterLab's drive for the URLs of the server extension. */
class TurnDrive extends Drive {
  constructor(private readonly settings: ServerConnection.ISettings) {
    super({ name: DRIVE, apiEndpoint: "nb-agents/contents", serverSettings: settings });
  }

  override getDownloadUrl(path: string): Promise<string> {
    return Promise.resolve(addressOf(this.settings, path));
  }

  override listCheckpoints(): Promise<Contents.ICheckpointModel[]> {
    return Promise.resolve([]); // the drive is read-only
  }
}

function addressOf({ baseUrl }: ServerConnection.ISettings, path: string): string {
  return `${baseUrl}nb-agents/files/${path.split("/").map(encodeURIComponent).join("/")}`;
}

export function makeTurnFiles(app: JupyterFrontEnd, browsers: IFileBrowserFactory | null): TurnFiles {
  const { contents, serverSettings } = app.serviceManager;
  contents.addDrive(new TurnDrive(serverSettings));
  // Notebook 7 opens each document in a separate tab, with a URL that can't contain a drive.
  const hasTabs = app.name === "JupyterLab";
  const address = (turn: string, path: string): string => addressOf(serverSettings, `${turn}/${path}`);
  return {
    address,
    open(turn, path) {
      const at = `${DRIVE}:${turn.replace(/^\/+/, "")}/${path}`;
      if (hasTabs && TEXT.test(path)) void app.commands.execute("docmanager:open", { path: at, factory: "Editor" });
      else if (hasTabs && SHOWN.test(path)) void app.commands.execute("docmanager:open", { path: at });
      else window.open(address(turn, path), "_blank", "noopener"); // shown as text or image, or downloaded
    },
    browse: hasTabs && browsers ? (turn) => browse(app, browsers, turn) : undefined,
  };
}

function browse(app: JupyterFrontEnd, browsers: IFileBrowserFactory, turn: string): void {
  const id = `nb-agents-files-${turn}`;
  if (![...app.shell.widgets("main")].some((widget) => widget.id === id)) {
    const content = browsers.createFileBrowser(`${id}-browser`, { driveName: DRIVE, auto: false, restore: false });
    void content.model.cd(`/${turn.replace(/^\/+/, "")}`);
    const widget = new MainAreaWidget({ content });
    widget.id = id;
    widget.title.label = turn.split("/").slice(-2).join("/");
    widget.title.closable = true;
    app.shell.add(widget, "main");
  }
  app.shell.activateById(id);
}
