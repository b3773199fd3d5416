/**
 * Draws a turn where a cell has shown it: its panel while it is live, its card when it is over.
 *
 * It draws from the journal, through the server: so a reload, a dead kernel, a second tab and
 * another day make no difference. Without the server's extension it shows the bundle's own HTML.
 */

import { type IRenderMimeRegistry, MimeModel } from "@jupyterlab/rendermime";
import type { IRenderMime } from "@jupyterlab/rendermime-interfaces";
import { Panel, type Widget } from "@lumino/widgets";
import { type Api, turnId } from "./api";
import { type Target, makeDoors } from "./doors";
import type { Kernel } from "./kernel";
import { type Doors, type LivePanel, makeLivePanel } from "./live";
import { type PanelState, isFinal } from "./state";
import type { Bundle, News, Watcher } from "./watch";

export const TURN_MIME = "application/vnd.nb-agents.turn+json";

/** The server answers sooner, as a rule: what the bundle says would only flash up. */
const STATIC_AFTER_MS = 400;

interface TurnData {
  readonly path?: string;
  readonly state?: PanelState["status"];
}

/** What a renderer needs of the application. */
export interface Surroundings {
  readonly rendermime: IRenderMimeRegistry;
  readonly watcher: Watcher;
  readonly api: Api;
  /** A path without its drive. */
  localPath(path: string): string;
  /** All renderers that are there. */
  readonly shown: Set<TurnRenderer>;
  /** The kernel of the notebook that an output is in. */
  kernelOf(output: Node): Kernel | undefined;
}

export class TurnRenderer extends Panel implements IRenderMime.IRenderer {
  private model: IRenderMime.IMimeModel | null = null;
  private turn = "";
  /** Whether what is drawn is the end, as the server tells it. */
  private isSettled = false;
  private panel: LivePanel | null = null;
  private card: Widget | null = null;
  private state: PanelState | null = null;
  private problem = "";
  private life = new AbortController();
  private readonly status = document.createElement("span");

  constructor(
    private readonly app: Surroundings,
    private readonly how: IRenderMime.IRendererOptions,
  ) {
    super();
    this.addClass("nba-turn");
    // The end is told to who can't see it, when the panel gives way to the card.
    this.status.className = "nba-turn-status";
    this.status.setAttribute("role", "status");
    this.node.append(this.status);
    app.shown.add(this);
  }

  /** Whether it shows this turn in a notebook that a person sees, be it scrolled out of sight. */
  isSeen(turn: string): boolean {
    for (let widget: Widget | null = this; widget; widget = widget.parent) if (widget.isHidden) return false;
    return this.turn === turn && !document.hidden;
  }

  /** Called at each change of the output; a refreshed bundle of the turn that is shown changes nothing. */
  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    this.model = model;
    const data = dataOf(model.data);
    const turn = turnId(data.path ?? "", this.app.localPath(this.notebook()));
    if (turn === this.turn && (this.isSettled || !isOver(data))) return;
    this.restart(turn);
    if (isOver(data)) await this.drawCard(model.data, model.trusted);
    // A notebook that is not trusted shows little of what it holds; what the server makes is ours.
    if (!isOver(data) || !model.trusted) this.follow(model);
  }

  override dispose(): void {
    this.life.abort();
    this.app.shown.delete(this);
    super.dispose();
  }

  private notebook(): string {
    // Not in the interface, but in what JupyterLab gives to each notebook.
    return (this.how.resolver as { readonly path?: string } | null)?.path ?? "";
  }

  private restart(turn: string): void {
    this.turn = turn;
    this.isSettled = false;
    this.life.abort();
    this.life = new AbortController();
  }

  private follow(model: IRenderMime.IMimeModel): void {
    const life = this.life.signal;
    const end = this.app.watcher.watch(this.turn, (news) => {
      if (!life.aborted) void this.take(news);
    });
    const timer = setTimeout(() => {
      if (!this.panel && !this.card) void this.drawCard(model.data, model.trusted);
    }, STATIC_AFTER_MS);
    life.addEventListener("abort", () => {
      end();
      clearTimeout(timer);
    });
  }

  private async take(news: News): Promise<void> {
    switch (news.kind) {
      case "state":
        this.drawPanel(news.state);
        return;
      case "card":
        this.isSettled = true;
        await this.drawCard(news.bundle, true);
        this.keep(news.bundle);
        return;
      default:
        if (this.model && !this.card) await this.drawCard(this.model.data, this.model.trusted);
    }
  }

  private drawPanel(state: PanelState): void {
    this.state = state;
    if (!this.panel) {
      this.panel = makeLivePanel(this.life.signal, this.doors());
      this.card?.dispose();
      this.card = null;
      this.node.append(this.panel.el);
    }
    const notices = this.problem ? [...state.notices, this.problem] : state.notices;
    this.panel.draw({ ...state, notices });
  }

  /** Draw a bundle's HTML, as JupyterLab draws HTML: what is not trusted is sanitised. */
  private async drawCard(bundle: Bundle, trusted: boolean): Promise<void> {
    const factory = this.app.rendermime.getFactory("text/html");
    const renderer = factory?.createRenderer({ ...this.how, mimeType: "text/html" });
    if (!renderer) return;
    const data = { "text/html": String(bundle["text/html"] ?? "") };
    await renderer.renderModel(new MimeModel({ data, trusted }));
    if (this.isDisposed) return;
    const hadFocus = this.node.contains(document.activeElement);
    this.panel?.el.remove();
    this.panel = null;
    this.card?.dispose();
    this.card = renderer;
    this.addWidget(renderer);
    if (this.state) this.status.textContent = dataOf(bundle).state ?? "";
    if (hadFocus) {
      renderer.node.tabIndex = -1;
      renderer.node.focus({ preventScroll: true });
    }
  }

  /**
   * Put the end into the notebook, so that it is saved with it: a page that was loaded in mid-run
   * gets no more updates of that output from the kernel.
   */
  private keep(bundle: Bundle): void {
    if (!this.model || isOver(dataOf(this.model.data))) return;
    this.model.setData({ data: bundle as IRenderMime.IMimeModel["data"], metadata: this.model.metadata });
  }

  private doors(): Doors {
    const target = (): Target => ({
      turn: this.turn,
      run: `${this.state?.session}/${this.state?.turn}`,
      kernel: this.app.kernelOf(this.node),
    });
    return makeDoors(target, this.app.api, (problem) => {
      this.problem = problem;
      if (this.panel && this.state) this.drawPanel(this.state);
    });
  }
}

function dataOf(bundle: Bundle): TurnData {
  const data = bundle[TURN_MIME];
  return typeof data === "object" && data !== null ? data : {};
}

function isOver({ state }: TurnData): boolean {
  return state !== undefined && isFinal(state);
}
