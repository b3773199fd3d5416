/**
 * Draws a turn or a sweep where a cell has shown it: its panel while it is live, its card when it is over.
 *
 * It draws from the disk, through the server: so a reload, a dead kernel, a second tab and
 * another day make no difference. Without the server's extension it shows the bundle's own HTML.
 */

import { type IRenderMimeRegistry, MimeModel } from "@jupyterlab/rendermime";
import type { IRenderMime } from "@jupyterlab/rendermime-interfaces";
import { Panel, type Widget } from "@lumino/widgets";
import { type Api, serverId } from "./api";
import { type Target, makeDoors } from "./doors";
import type { Kernel } from "./kernel";
import { makeLivePanel } from "./live";
import { DRAWN_REQUEST, sendOnControl } from "./send";
import { makeServerSweep } from "./server-sweep";
import { type PanelState, isFinal } from "./state";
import { type SweepState, isSweep } from "./sweep-state";
import { type Bundle, type News, type Watcher, pathOf, statusOf } from "./watch";

/** The server answers sooner, as a rule: what the bundle says would only flash up. */
const STATIC_AFTER_MS = 400;

/** Of a turn or of a sweep: a renderer shows one of them. */
interface Drawn {
  readonly el: HTMLElement;
  draw(state: PanelState | SweepState): void;
}

/** What a renderer needs of the application. */
export interface Surroundings {
  readonly rendermime: IRenderMimeRegistry;
  readonly watcher: Watcher;
  readonly api: Api;
  /** A path without its drive. */
  localPath(path: string): string;
  /** All renderers that are there. */
  readonly shown: Set<RunRenderer>;
  /** The kernel of the notebook that an output is in. */
  kernelOf(output: Node): Kernel | undefined;
}

export class RunRenderer extends Panel implements IRenderMime.IRenderer {
  private model: IRenderMime.IMimeModel | null = null;
  /** What is shown, as the server calls it. */
  private shownId = "";
  /** Whether what is drawn is the end, as the server tells it. */
  private isSettled = false;
  private panel: Drawn | null = null;
  private card: Widget | null = null;
  private state: PanelState | SweepState | null = null;
  private problem = "";
  private life = new AbortController();
  private readonly status = document.createElement("span");

  constructor(
    private readonly app: Surroundings,
    private readonly how: IRenderMime.IRendererOptions,
  ) {
    super();
    this.addClass("nba-output");
    // The end is told to who can't see it, when the panel gives way to the card.
    this.status.className = "nba-output-status";
    this.status.setAttribute("role", "status");
    this.node.append(this.status);
    app.shown.add(this);
  }

  /** Whether it shows this turn or sweep in a notebook that a person sees, be it scrolled out of sight. */
  isSeen(id: string): boolean {
    for (let widget: Widget | null = this; widget; widget = widget.parent) if (widget.isHidden) return false;
    return this.shownId === id && !document.hidden;
  }

  /** Called at each change of the output; a refreshed bundle of what is shown changes nothing. */
  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    this.model = model;
    const shownId = serverId(pathOf(model.data), this.app.localPath(this.notebook()));
    if (shownId === this.shownId && (this.isSettled || !isOver(model.data))) return;
    this.restart(shownId);
    if (isOver(model.data)) await this.drawCard(model.data, model.trusted);
    // A notebook that is not trusted shows little of what it holds; what the server makes is ours.
    if (!isOver(model.data) || !model.trusted) this.follow(model);
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

  private restart(shownId: string): void {
    this.shownId = shownId;
    this.isSettled = false;
    this.life.abort();
    this.life = new AbortController();
  }

  private follow(model: IRenderMime.IMimeModel): void {
    const life = this.life.signal;
    const end = this.app.watcher.watch(this.shownId, (news) => {
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

  private drawPanel(state: PanelState | SweepState): void {
    this.state = state;
    if (!this.panel) {
      this.panel = isSweep(state) ? this.makeSweep() : this.makeRun();
      this.card?.dispose();
      this.card = null;
      this.node.append(this.panel.el);
      this.relieve(state);
    }
    const notices = this.problem ? [...state.notices, this.problem] : state.notices;
    this.panel.draw({ ...state, notices });
  }

  /** Tell the kernel that this page draws it by itself, so that it need not send each change, too. */
  private relieve(state: PanelState | SweepState): void {
    const shown = isSweep(state) ? state.sweep : `${state.session}/${state.turn}`;
    sendOnControl(this.app.kernelOf(this.node), DRAWN_REQUEST, { shown }).catch(() => {}); // it is gone
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
    if (this.state) this.status.textContent = statusOf(bundle) ?? "";
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
    if (!this.model || isOver(this.model.data)) return;
    this.model.setData({ data: bundle as IRenderMime.IMimeModel["data"], metadata: this.model.metadata });
  }

  private makeRun(): Drawn {
    const target = (): Target => ({
      turn: this.shownId,
      run: this.state && !isSweep(this.state) ? `${this.state.session}/${this.state.turn}` : "",
      kernel: this.app.kernelOf(this.node),
    });
    return makeLivePanel(this.life.signal, makeDoors(target, this.app.api, (problem) => this.tell(problem)));
  }

  private makeSweep(): Drawn {
    return makeServerSweep(this.life.signal, {
      id: this.shownId,
      api: this.app.api,
      watcher: this.app.watcher,
      kernel: () => this.app.kernelOf(this.node),
      tell: (problem) => this.tell(problem),
    });
  }

  private tell(problem: string): void {
    this.problem = problem;
    if (this.panel && this.state) this.drawPanel(this.state);
  }
}

function isOver(bundle: Bundle): boolean {
  const status = statusOf(bundle);
  return status !== undefined && isFinal(status);
}
