/**
 * Draws a turn or a sweep where a cell has shown it: its panel while it is live, its card when it is over.
 *
 * It draws from the disk, through the server: so a reload, a dead kernel, a second tab and
 * another day make no difference. Where the server has no extension, or does not see that disk, it
 * shows what JupyterLab would without this plugin: the widget, and the bundle's own HTML beneath it.
 */

import type { PanelState, SweepState } from "./panel-types";
import { type IRenderMimeRegistry, MimeModel } from "@jupyterlab/rendermime";
import type { IRenderMime } from "@jupyterlab/rendermime-interfaces";
import { Panel, type Widget } from "@lumino/widgets";
import { drawAnswer, typeset } from "./answers";
import { type Api, serverId } from "./api";
import { type Target, makeDoors } from "./doors";
import { make } from "./dom";
import { DRAW, type Drawing } from "./drawing";
import type { TurnFiles } from "./files";
import { filesOn } from "./card-files";
import { FILE, type Files, type TurnFile } from "./harmless";
import type { Kernel } from "./kernel";
import { makeLivePanel } from "./live";
import { resumeTurn } from "./resume";
import { makeReachable, pointOf, reach } from "./points";
import { makeStrip } from "./strip";
import { DRAWN_REQUEST, sendOnControl } from "./send";
import { makeServerSweep } from "./server-sweep";
import { isFinal } from "./state";
import { isSweep } from "./sweep-state";
import { type Bundle, type News, TURN_MIME, type Watcher, answersOf, factsOf, pathOf, statusOf } from "./watch";

/** The server answers sooner, as a rule: what the bundle says would only flash up. */
const STATIC_AFTER_MS = 400;
/** A widget that is shown has its kernel send each change, so a slow server is waited for. */
const WIDGET_AFTER_MS = 5000;

/** What the server sends as an image. */
const IMAGE = /\.(?:png|jpe?g|svg)$/i;

export const WIDGET_MIME = "application/vnd.jupyter.widget-view+json";

/** Of a turn or of a sweep: a renderer shows one of them. */
interface Drawn {
  readonly el: HTMLElement;
  draw(state: PanelState | SweepState): void;
  /** Of a sweep: the turn of the row that is drawn whole, as the server calls it. */
  opened?(): string;
}

/** Marks a card's button, which has JupyterLab add a cell to its notebook. */
const LINKED = "data-commandlinker-command";
const LINKED_ARGS = "data-commandlinker-args";

/** What a renderer needs of the application. */
export interface Surroundings {
  readonly rendermime: IRenderMimeRegistry;
  readonly watcher: Watcher;
  readonly api: Api;
  readonly files: TurnFiles;
  /** A path without its drive. */
  localPath(path: string): string;
  /** All renderers that are there. */
  readonly shown: Set<RunRenderer>;
  /** The kernel of the notebook that an output is in. */
  kernelOf(output: Node): Kernel | undefined;
  /** What draws the widgets of that kernel, once it is there; nothing when it is not. */
  widgetsOf(output: Node): Promise<IRenderMime.IRendererFactory | undefined>;
  /** Have the server go on with a turn of a sweep's row, or with a task that the person is asked for. */
  resume(turn: string): void;
  continue_(turn: string): void;
  /** Let a person choose a point of a turn, from this one on, and go on from there. */
  rewind(turn: string, at?: number): Promise<void>;
  /** Do what a stranger's turn needs trust for, which the person is asked for; and report why it can't be done. */
  attempt<T>(act: (trust: boolean) => Promise<T>): Promise<T | undefined>;
  /** Do what JupyterLab does at a press of a card's button. */
  link(command: string, args: string): void;
  /** Run the cell of an output anew, whatever it paid for before. */
  runAgain(output: Node): void;
  /** Whether a turn is live, as of now, and from then on at each change until the end of a life. */
  followLive(id: string, life: AbortSignal, told: (isLive: boolean) => void): void;
  /** Stop a turn, and show it beside the notebook. */
  stop(turn: string): void;
  open(turn: string): void;
  /** Called when the output of a turn goes out of the page. */
  left(turn: string, output: Node): void;
  /** Add a cell below the active one, without running it. */
  addCell(source: string): void;
}

export class RunRenderer extends Panel implements IRenderMime.IRenderer {
  private model: IRenderMime.IMimeModel | null = null;
  /** What is shown, as the server calls it. */
  private shownId = "";
  /** Whether the server has said that it knows nothing of it. */
  private isUnknown = false;
  /** Whether what is drawn is the end, as the server reports it. */
  private isSettled = false;
  private panel: Drawn | null = null;
  private card: Widget | null = null;
  /** What the card was made of. */
  private cardText = "";
  private widget: Widget | null = null;
  private state: PanelState | SweepState | null = null;
  private problem = "";
  private strip: HTMLElement | null = null;
  private life = new AbortController();
  private readonly status = document.createElement("span");
  private readonly back = make("button", "nba-back");

  constructor(
    private readonly app: Surroundings,
    private readonly how: IRenderMime.IRendererOptions,
  ) {
    super();
    this.addClass("nba-output");
    // Announces the end to those who can't see it, when the panel gives way to the card.
    this.status.className = "nba-output-status";
    this.status.setAttribute("role", "status");
    this.back.type = "button";
    this.back.textContent = "Go back to here…";
    this.back.title = "Choose a moment of this turn, and go on from there; the turn stays as it is";
    this.back.addEventListener("click", () => void app.rewind(this.shownId));
    this.node.append(this.status);
    this.node.addEventListener("click", (event) => this.press(event));
    this.node.addEventListener(DRAW, (event) => {
      void this.drawInPanel(event.target as HTMLElement, (event as CustomEvent<Drawing>).detail);
    });
    app.shown.add(this);
  }

  /** Whether it shows this turn or sweep in a notebook that a person sees, be it scrolled out of sight. */
  isSeen(id: string): boolean {
    for (let widget: Widget | null = this; widget; widget = widget.parent) if (widget.isHidden) return false;
    return this.shownId === id && !document.hidden;
  }

  /** Called at each change of the output; what the server draws is newer than a refreshed bundle. */
  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    this.model = model;
    const shownId = serverId(pathOf(model.data), this.app.localPath(this.notebook()));
    if (shownId === this.shownId && (this.isSettled || !isOver(model.data))) {
      if (this.card) await this.drawStatic();
      return;
    }
    this.restart(shownId);
    this.drawStrip(model.data);
    if (isOver(model.data)) await this.drawCard(model.data, model.trusted);
    // A notebook that is not trusted shows little of what it holds; what the server makes is ours.
    if (!isOver(model.data) || !model.trusted) this.follow();
  }

  override dispose(): void {
    this.life.abort();
    this.app.shown.delete(this);
    super.dispose();
  }

  protected override onBeforeDetach(): void {
    this.app.left(this.shownId, this.node);
  }

  private notebook(): string {
    // Not in the interface, but in what JupyterLab gives to each notebook.
    return (this.how.resolver as { readonly path?: string } | null)?.path ?? "";
  }

  private restart(shownId: string): void {
    this.isUnknown &&= shownId === this.shownId;
    this.shownId = shownId;
    this.isSettled = false;
    this.life.abort();
    this.life = new AbortController();
  }

  /** Say above it what the cell did before. */
  private drawStrip(bundle: Bundle): void {
    const { is_earlier, beside } = factsOf(bundle);
    this.strip?.remove();
    this.strip = null;
    if (!is_earlier && !beside) return;
    const earlier = beside ? serverId(beside, this.app.localPath(this.notebook())) : "";
    const strip = makeStrip(this.life.signal, {
      again: () => this.app.runAgain(this.node),
      stop: () => this.app.stop(earlier),
      show: () => this.app.open(earlier),
    });
    this.strip = strip.el;
    this.node.prepend(strip.el);
    if (is_earlier) strip.offerAgain();
    else this.app.followLive(earlier, this.life.signal, (isLive) => (isLive ? strip.offerStop() : strip.hide()));
  }

  private follow(): void {
    const life = this.life.signal;
    const end = this.app.watcher.watch(this.shownId, (news) => {
      if (!life.aborted) void this.take(news);
    });
    const timers = [
      setTimeout(() => void this.drawStatic(), STATIC_AFTER_MS),
      setTimeout(() => void this.drawWidget(), WIDGET_AFTER_MS),
    ];
    life.addEventListener("abort", () => {
      end();
      timers.forEach(clearTimeout);
    });
  }

  private async take(news: News): Promise<void> {
    this.isUnknown = news.kind === "unknown" || news.kind === "absent";
    if (news.kind !== "card") this.back.remove(); // a live turn's panel has its timeline
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
        this.remove("panel");
        await Promise.all([this.drawStatic(), this.drawWidget()]);
    }
  }

  private drawPanel(state: PanelState | SweepState): void {
    this.state = state;
    if (!this.panel) {
      this.panel = isSweep(state) ? this.makeSweep() : this.makeRun();
      const hadFocus = this.node.contains(document.activeElement);
      this.remove("card", "widget");
      this.node.append(this.panel.el);
      if (hadFocus) this.panel.el.focus({ preventScroll: true });
      this.relieve(state);
    }
    const notices = this.problem ? [...state.notices, this.problem] : state.notices;
    this.panel.draw({ ...state, notices });
  }

  /** Notify the kernel that this page draws it by itself, so that it need not send each change, too. */
  private relieve(state: PanelState | SweepState): void {
    const shown = isSweep(state) ? state.sweep : `${state.session}/${state.turn}`;
    sendOnControl(this.app.kernelOf(this.node), DRAWN_REQUEST, { shown }).catch(() => {}); // it is gone
  }

  /** Draw what the bundle holds while the server sends nothing. */
  private async drawStatic(): Promise<void> {
    const life = this.life.signal;
    if (!this.model || this.panel || this.isSettled) return;
    const { data, trusted } = this.model;
    if (this.card && this.cardText === textOf(data, trusted)) return; // a person may have opened parts of it
    const card = await this.makeHtml(data, trusted);
    if (life.aborted || this.panel || this.isSettled) card?.dispose();
    else this.place(card, textOf(data, trusted));
  }

  /**
   * Draw the kernel's own panel; the style sheet hides the HTML while it is there. The widgets'
   * renderer is not safe: it is not for what is not trusted.
   */
  private async drawWidget(): Promise<void> {
    const life = this.life.signal;
    if (!this.model?.trusted || isOver(this.model.data) || !(WIDGET_MIME in this.model.data)) return;
    const factory = await this.app.widgetsOf(this.node);
    if (!factory || life.aborted || this.panel || this.widget) return;
    const renderer = factory.createRenderer({ ...this.how, mimeType: WIDGET_MIME });
    renderer.addClass("nba-widget");
    this.widget = renderer;
    this.addWidget(renderer);
    await renderer.renderModel(this.model);
  }

  /** Draw the end. */
  private async drawCard(bundle: Bundle, trusted: boolean): Promise<void> {
    const card = await this.makeHtml(bundle, trusted);
    if (this.isDisposed) return;
    this.place(card, textOf(bundle, trusted), "panel", "widget");
    if (trusted && !this.isUnknown && TURN_MIME in bundle) this.node.append(this.back);
    if (this.state) this.status.textContent = statusOf(bundle) ?? "";
  }

  /** Make a bundle's HTML, as JupyterLab draws HTML: what is not trusted is sanitised. */
  private async makeHtml(bundle: Bundle, trusted: boolean): Promise<Widget | undefined> {
    const factory = this.app.rendermime.getFactory("text/html");
    const renderer = factory?.createRenderer({ ...this.how, mimeType: "text/html" });
    const data = { "text/html": String(bundle["text/html"] ?? "") };
    await renderer?.renderModel(new MimeModel({ data, trusted }));
    if (renderer) await this.drawAnswers(renderer.node, answersOf(bundle));
    if (renderer) makeReachable(renderer.node);
    return renderer;
  }

  /** Have JupyterLab draw the answers of a card, in the place of the HTML that is for pages that can't. */
  private async drawAnswers(card: HTMLElement, answers: readonly string[]): Promise<void> {
    const places = [...card.querySelectorAll<HTMLElement>(".nb-answer")];
    const filesOf = filesOn(card, (agent, path) => this.file(agent, path), this.app.files.browse !== undefined);
    if (places.length !== answers.length) return;
    await Promise.all(places.map((place, i) => this.drawAt(place, answers[i] ?? "", filesOf(place))));
  }

  /** Draw an answer of an agent that is open, or the formulas of a card, in a document. */
  private async drawInPanel(host: HTMLElement, { markdown, agent, answers = [] }: Drawing): Promise<void> {
    const file = (path: string): TurnFile | undefined => this.file(agent, path);
    const image = (path: string): string => (IMAGE.test(path) ? (file(path)?.address ?? "") : "");
    if (markdown) await this.drawAt(host, markdown, { file, image });
    else await this.drawAnswers(host, answers);
    typeset(this.app.rendermime, host);
  }

  private async drawAt(host: HTMLElement, markdown: string, files: Files): Promise<void> {
    try {
      const drawn = await drawAnswer(this.app.rendermime, this.how, markdown, files);
      if (drawn) host.replaceChildren(drawn);
    } catch (error) {
      console.debug("nb_agents: an answer is shown as it was written.", error);
    }
  }

  /** A file of an agent's workspace; nothing for a path that leads out of it. */
  private file(agent: string, path: string): TurnFile | undefined {
    if (path.split("/").some((name) => name === ".." || name === "")) return undefined;
    const inTurn = `workspaces/${agent}/${path}`;
    return { path: inTurn, address: this.app.files.address(this.turn(), inTurn) };
  }

  /** The turn that is drawn whole. */
  private turn(): string {
    return this.panel?.opened?.() || this.shownId;
  }

  /** Put a card into the place of another one, and of these. A focus that goes with them moves to it. */
  private place(card: Widget | undefined, text: string, ...others: ("panel" | "widget")[]): void {
    if (!card) return;
    this.cardText = text;
    const hadFocus = this.node.contains(document.activeElement);
    if (this.card) keepOpen(this.card.node, card.node);
    this.remove("card", ...others);
    this.card = card;
    this.addWidget(card);
    if (hadFocus && !this.node.contains(document.activeElement)) {
      card.node.tabIndex = -1;
      card.node.focus({ preventScroll: true });
    }
  }

  private remove(...parts: ("panel" | "card" | "widget")[]): void {
    for (const part of parts) {
      if (part === "panel") this.panel?.el.remove();
      else this[part]?.dispose();
      this[part] = null;
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
    return makeLivePanel(this.life.signal, makeDoors(target, this.app.api, (problem) => this.report(problem)));
  }

  private makeSweep(): Drawn {
    return makeServerSweep(this.life.signal, {
      id: this.shownId,
      api: this.app.api,
      watcher: this.app.watcher,
      kernel: () => this.app.kernelOf(this.node),
      report: (problem) => this.report(problem),
    });
  }

  /**
   * Do what a card's button would have a cell do, where the card is. In a notebook that is not trusted nothing
   * runs in a kernel at one press: its cell is added for a person to read and to run.
   */
  private press(event: MouseEvent): void {
    if (this.openFile(event)) return;
    const point = pointOf((event.target as Element).closest("[data-point]"));
    if (point && (this.panel || this.back.parentNode)) {
      void this.goBack(point);
      return;
    }
    const button = (event.target as Element).closest<HTMLButtonElement>(`[${LINKED}]`);
    // A widget is drawn of what the server does not know, so that it could not go on.
    if (!button || button.closest(".nba-widget")) return;
    const hasKernel = this.app.kernelOf(this.node) !== undefined;
    const isRow = button.closest(".opened") !== null;
    const isOurs = button.value === "resume" && !isRow && this.notebook() !== "";
    if (hasKernel && this.model?.trusted && !isOurs) return;
    event.stopPropagation(); // before JupyterLab adds a cell to a notebook that may be another one
    if (hasKernel && !this.model?.trusted) this.app.addCell(sourceOf(button));
    else if (isOurs) void this.resume(button);
    else if (button.value === "continue") this.app.continue_(this.pressed(isRow));
    else this.app.resume(this.pressed(isRow));
  }

  private async goBack(point: string): Promise<void> {
    const [turn, event] = point.split(":");
    await this.app.rewind(this.turn().replace(/turn_[0-9]+$/, `turn_${turn}`), Number(event));
    // It may have been drawn anew behind the dialog, which then can't give the focus back.
    if (document.activeElement === document.body) reach(this.node, point);
  }

  private pressed(isRow: boolean): string {
    return isRow ? (this.panel?.opened?.() ?? "") : this.shownId;
  }

  /** Go on with the turn in this output; by a cell where the server does not see it, and so could not show it. */
  private async resume(button: HTMLButtonElement): Promise<void> {
    if (!this.model || button.getAttribute("aria-busy")) return;
    button.setAttribute("aria-busy", "true");
    const turn = { path: pathOf(this.model.data), id: this.shownId };
    const isKnown = await this.app.api.run(turn.id).then(
      () => true,
      () => false,
    );
    if (isKnown) {
      const kernel = this.app.kernelOf(this.node);
      const bundle = await this.app.attempt((trust) => resumeTurn(turn, kernel, this.app.api, trust));
      if (bundle) await this.replace(bundle);
    } else this.app.link(button.getAttribute(LINKED) ?? "", button.getAttribute(LINKED_ARGS) ?? "");
    button.removeAttribute("aria-busy");
  }

  /** Show another turn in the place of this one, and save it with the notebook. */
  private async replace(bundle: Bundle): Promise<void> {
    if (!this.model || this.isDisposed) return;
    this.model.setData({ data: bundle as IRenderMime.IMimeModel["data"], metadata: this.model.metadata });
    await this.renderModel(this.model);
  }

  /** Open a file of a workspace, or the files of the turn, here and not in another tab. */
  private openFile(event: MouseEvent): boolean {
    const link = (event.target as Element).closest<HTMLElement>(`[${FILE}]`);
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return false;
    event.preventDefault();
    event.stopPropagation();
    const path = link.getAttribute(FILE) ?? "";
    if (path) this.app.files.open(this.turn(), path);
    else this.app.files.browse?.(this.turn());
    return true;
  }

  private report(problem: string): void {
    this.problem = problem;
    if (this.panel && this.state) this.drawPanel(this.state);
  }
}

/** Leave the parts of a card as a person has them, open or closed, when another one takes its place. */
function keepOpen(old: Element, card: Element): void {
  const shown = new Map([...old.querySelectorAll("details")].map((part) => [titleOf(part), part.open]));
  for (const part of card.querySelectorAll("details")) part.open = shown.get(titleOf(part)) ?? part.open;
  const all = [...old.querySelectorAll<HTMLInputElement>(".nb-more > input")].map((box) => box.checked);
  card.querySelectorAll<HTMLInputElement>(".nb-more > input").forEach((box, i) => {
    box.checked = all[i] ?? false;
  });
}

function titleOf(part: HTMLDetailsElement): string {
  return part.querySelector("summary")?.textContent?.trim() ?? "";
}

/** Read what a card's button writes into the cell that it adds. */
function sourceOf(button: HTMLElement): string {
  try {
    const linked = JSON.parse(button.getAttribute(LINKED_ARGS) ?? "") as { args: { text: unknown } };
    return String(linked.args.text);
  } catch {
    return ""; // a stranger's HTML
  }
}

/** A card is made of its HTML, which is sanitised unless it is trusted. */
function textOf(bundle: Bundle, trusted: boolean): string {
  return `${trusted} ${String(bundle["text/html"] ?? "")}`;
}

function isOver(bundle: Bundle): boolean {
  const status = statusOf(bundle);
  return status !== undefined && isFinal(status);
}
