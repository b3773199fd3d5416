/**
 * Draws a turn or sweep in a cell's output: its panel while it is live, then its card.
 *
 * It draws from the disk through the server, so it works after a reload, without the kernel and in several
 * tabs. If the server does not have the extension or can't access the files, it shows the widget or the
 * bundle's HTML, like JupyterLab without this plugin.
 */

import type { PanelState, SweepState } from "./panel-types";
import { type IRenderMimeRegistry, MimeModel } from "@jupyterlab/rendermime";
import type { IRenderMime } from "@jupyterlab/rendermime-interfaces";
import { Panel, type Widget } from "@lumino/widgets";
import { type CodeActions, addCodeButtons } from "./answer-code";
import { drawAnswer, typeset } from "./answers";
import { type Api, serverId } from "./api";
import { type Target, makeRequests } from "./requests";
import { make } from "./dom";
import { DRAW, type Drawing } from "./drawing";
import type { TurnFiles } from "./files";
import { filesOn } from "./card-files";
import { FILE, type Files, type TurnFile } from "./sanitize";
import type { Kernel } from "./kernel";
import { makeLivePanel } from "./live";
import { resumeTurn } from "./resume";
import { enableKeyboard, pointOf, focusPoint } from "./points";
import { makeStrip } from "./strip";
import { DRAWN_REQUEST, sendOnControl } from "./send";
import { makeServerSweep } from "./server-sweep";
import { trans } from "./text";
import { isFinal } from "./state";
import { isSweep } from "./sweep-state";
import { type Bundle, type News, TURN_MIME, type Watcher, answersOf, factsOf, pathOf, statusOf } from "./watch";

/** Delay before the bundle is drawn, because the server usually answers earlier. */
const STATIC_AFTER_MS = 400;
/** Delay before the widget is shown, because its kernel then sends each change. */
const WIDGET_AFTER_MS = 5000;

/** Files that the server sends as images. */
const IMAGE = /\.(?:png|jpe?g|svg)$/i;

export const WIDGET_MIME = "application/vnd.jupyter.widget-view+json";

/** The drawn panel, of a turn or of a sweep. */
interface Drawn {
  readonly el: HTMLElement;
  draw(state: PanelState | SweepState): void;
  /** For a sweep: the server's id of the open row's turn. */
  opened?(): string;
}

/** Attribute of a card's button, with which JupyterLab adds a cell to the notebook. */
const LINKED = "data-commandlinker-command";
const LINKED_ARGS = "data-commandlinker-args";

/** The parts of the application that a renderer uses. */
export interface Surroundings {
  readonly rendermime: IRenderMimeRegistry;
  readonly watcher: Watcher;
  readonly api: Api;
  readonly files: TurnFiles;
  /** Return a path without its drive. */
  localPath(path: string): string;
  /** All existing renderers. */
  readonly shown: Set<RunRenderer>;
  /** Return the kernel of an output's notebook. */
  kernelOf(output: Node): Kernel | undefined;
  /** Resolve to the renderer of that kernel's widgets, or to undefined. */
  widgetsOf(output: Node): Promise<IRenderMime.IRendererFactory | undefined>;
  /** Let the server resume the turn of a sweep's row, or continue it with a task that the user enters. */
  resume(turn: string): void;
  continue_(turn: string): void;
  /** Let the user choose a checkpoint of a turn, and rewind to it. The given one is preselected. */
  rewind(turn: string, at?: number): Promise<void>;
  /** Call an action. Ask the user for trust if necessary, and report errors. */
  attempt<T>(act: (trust: boolean) => Promise<T>): Promise<T | undefined>;
  /** Run the JupyterLab commands of a card's button. */
  link(command: string, args: string): void;
  /** Put code blocks of answers into the notebook. */
  readonly code: CodeActions;
  /** Run the cell of an output again, ignoring an earlier result. */
  runAgain(output: Node): void;
  /** Call back with whether a turn is live, now and at each change. */
  followLive(id: string, life: AbortSignal, told: (isLive: boolean) => void): void;
  /** Call back with the last turn that resumed a turn, if there is one, now and at each change. */
  followResumes(id: string, life: AbortSignal, told: (turn: number, state: string) => void): void;
  /** Stop a turn, and show it next to the notebook. */
  stop(turn: string): void;
  open(turn: string): void;
  /** Called when a turn's output is removed from the page. */
  left(turn: string, output: Node): void;
  /** Called with the data of extensions in a turn's state, or in its card. */
  parts(turn: string, parts: unknown, output: Node, isLive: boolean): void;
  /** Add a cell below the active one, without running it. */
  addCell(source: string): void;
}

export class RunRenderer extends Panel implements IRenderMime.IRenderer {
  private model: IRenderMime.IMimeModel | null = null;
  /** The server's id of the shown turn or sweep. */
  private shownId = "";
  /** Whether the server does not know it. */
  private isUnknown = false;
  /** Whether the drawn card is the end reported by the server. */
  private isSettled = false;
  private panel: Drawn | null = null;
  private card: Widget | null = null;
  /** The source of the card. */
  private cardText = "";
  private widget: Widget | null = null;
  private state: PanelState | SweepState | null = null;
  private problem = "";
  private extensionParts: unknown;
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
    // Announces the end to screen readers when the card replaces the panel.
    this.status.className = "nba-output-status";
    this.status.setAttribute("role", "status");
    this.back.type = "button";
    this.back.textContent = trans.__("Go back…");
    this.back.title = trans.__("Choose a checkpoint of this turn, and continue from there. This turn does not change.");
    this.back.addEventListener("click", () => void app.rewind(this.shownId));
    this.node.append(this.status);
    this.node.addEventListener("click", (event) => this.press(event));
    this.node.addEventListener(DRAW, (event) => {
      void this.drawInPanel(event.target as HTMLElement, (event as CustomEvent<Drawing>).detail);
    });
    app.shown.add(this);
  }

  /** Whether it shows a turn or sweep in a visible notebook, even if scrolled out of sight. */
  isSeen(id: string): boolean {
    for (let widget: Widget | null = this; widget; widget = widget.parent) if (widget.isHidden) return false;
    return this.shownId === id && !document.hidden;
  }

  /** Called at each change of the output. The server's state is newer than a refreshed bundle. */
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
    if (isOver(model.data)) this.followResumes(model.data);
    // An untrusted notebook restricts the bundle's HTML, but HTML from the server is safe.
    if (!isOver(model.data) || !model.trusted) this.follow();
  }

  /** Get the card of an ended turn again from the server, if it is shown here. */
  redrawCard(turn: string): void {
    if (turn !== this.shownId || !this.card) return;
    const life = this.life.signal;
    this.app.watcher.watch(turn, (news) => {
      if (news.kind !== "card" || life.aborted) return;
      this.isSettled = true;
      void this.drawCard(news.bundle, true);
      this.store(news.bundle);
    });
  }

  override dispose(): void {
    this.life.abort();
    this.app.shown.delete(this);
    super.dispose();
  }

  /** The card of a loaded notebook is drawn before its output is in the page. */
  protected override onAfterAttach(): void {
    this.takeParts(this.extensionParts, this.panel !== null);
  }

  protected override onBeforeDetach(): void {
    this.app.left(this.shownId, this.node);
  }

  private notebook(): string {
    // Not part of the interface, but of the object that JupyterLab passes to each notebook.
    return (this.how.resolver as { readonly path?: string } | null)?.path ?? "";
  }

  private takeParts(parts: unknown, isLive: boolean): void {
    this.extensionParts = parts;
    if (this.isAttached && parts) this.app.parts(this.shownId, parts, this.node, isLive);
  }

  private restart(shownId: string): void {
    this.isUnknown &&= shownId === this.shownId;
    this.shownId = shownId;
    this.isSettled = false;
    this.node.classList.remove("resumed");
    this.life.abort();
    this.life = new AbortController();
  }

  /** Show a line about the cell's earlier run. */
  private drawStrip(bundle: Bundle): void {
    const { is_earlier, earlier_run } = factsOf(bundle);
    this.strip?.remove();
    this.strip = null;
    if (!is_earlier && !earlier_run) return;
    const earlier = earlier_run ? serverId(earlier_run, this.app.localPath(this.notebook())) : "";
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

  /** On the card of an incomplete turn, name the turn that resumed it instead of offering a resume. */
  private followResumes(bundle: Bundle): void {
    if (!(TURN_MIME in bundle) || statusOf(bundle) === "complete") return;
    const { shownId } = this;
    this.app.followResumes(shownId, this.life.signal, (turn, state) => {
      const later = shownId.replace(/turn_[0-9]+$/, `turn_${turn}`);
      const none = (): void => {};
      this.strip?.remove();
      const strip = makeStrip(this.life.signal, { again: none, stop: none, show: () => this.app.open(later) });
      this.strip = strip.el;
      strip.showResumed(turn, state);
      this.node.prepend(strip.el);
      this.node.classList.add("resumed");
    });
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
    if (news.kind !== "card") this.back.remove(); // the panel of a live turn has its own timeline
    switch (news.kind) {
      case "state":
        this.drawPanel(news.state);
        return;
      case "card":
        this.isSettled = true;
        await this.drawCard(news.bundle, true);
        this.followResumes(news.bundle);
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
    if (!isSweep(state)) this.takeParts(state.parts, true);
    const notices = this.problem ? [...state.notices, this.problem] : state.notices;
    this.panel.draw({ ...state, notices });
  }

  /** Notify the kernel that this page draws without it, so that it does not send each change. */
  private relieve(state: PanelState | SweepState): void {
    const shown = isSweep(state) ? state.sweep : `${state.session}/${state.turn}`;
    sendOnControl(this.app.kernelOf(this.node), DRAWN_REQUEST, { shown }).catch(() => {}); // the kernel has ended
  }

  /** Draw the bundle while the server sends nothing. */
  private async drawStatic(): Promise<void> {
    const life = this.life.signal;
    if (!this.model || this.panel || this.isSettled) return;
    const { data, trusted } = this.model;
    if (this.card && this.cardText === textOf(data, trusted)) return; // the user may have expanded parts of it
    const card = await this.makeHtml(data, trusted);
    if (life.aborted || this.panel || this.isSettled) card?.dispose();
    else this.place(card, textOf(data, trusted));
  }

  /**
   * Draw the kernel's widget. The style sheet hides the HTML then. The renderer of widgets is not safe, so
   * it is not used for untrusted outputs.
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

  /** Draw the final card. */
  private async drawCard(bundle: Bundle, trusted: boolean): Promise<void> {
    const card = await this.makeHtml(bundle, trusted);
    if (this.isDisposed) return;
    this.place(card, textOf(bundle, trusted), "panel", "widget");
    this.takeParts(factsOf(bundle).parts, false);
    if (trusted && !this.isUnknown && TURN_MIME in bundle) this.placeBack();
    if (this.state) this.status.textContent = statusOf(bundle) ?? "";
  }

  /** Put the button for a rewind into the card's footer. */
  private placeBack(): void {
    // The path is inside a link to the turn's files.
    const footer = this.card?.node.querySelector(".nb-path")?.closest("div");
    (footer ?? this.node).append(this.back);
  }

  /** Render a bundle's HTML like JupyterLab, which sanitises untrusted HTML. */
  private async makeHtml(bundle: Bundle, trusted: boolean): Promise<Widget | undefined> {
    const factory = this.app.rendermime.getFactory("text/html");
    const renderer = factory?.createRenderer({ ...this.how, mimeType: "text/html" });
    const data = { "text/html": String(bundle["text/html"] ?? "") };
    await renderer?.renderModel(new MimeModel({ data, trusted }));
    if (renderer) await this.drawAnswers(renderer.node, answersOf(bundle));
    if (renderer) enableKeyboard(renderer.node);
    return renderer;
  }

  /** Let JupyterLab render the answers of a card, replacing the HTML made for other pages. */
  private async drawAnswers(card: HTMLElement, answers: readonly string[]): Promise<void> {
    const places = [...card.querySelectorAll<HTMLElement>(".nb-answer")];
    const filesOf = filesOn(card, (agent, path) => this.file(agent, path), this.app.files.browse !== undefined);
    if (places.length !== answers.length) return;
    await Promise.all(places.map((place, i) => this.drawAt(place, answers[i] ?? "", filesOf(place))));
  }

  /** Render an answer in an open transcript, or the formulas of a card, in a document. */
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
      if (drawn && this.notebook()) addCodeButtons(drawn, this.app.code);
      if (drawn) host.replaceChildren(drawn);
    } catch (error) {
      console.debug("nb_agents: an answer is shown as it was written.", error);
    }
  }

  /** Return a file of an agent's workspace, or undefined for a path outside of it. */
  private file(agent: string, path: string): TurnFile | undefined {
    if (path.split("/").some((name) => name === ".." || name === "")) return undefined;
    const inTurn = `workspaces/${agent}/${path}`;
    return { path: inTurn, address: this.app.files.address(this.turn(), inTurn) };
  }

  /** The turn whose panel is drawn. */
  private turn(): string {
    return this.panel?.opened?.() || this.shownId;
  }

  /** Replace nodes and the old card by a card. A focus inside them moves to the card. */
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
   * Put the card into the notebook, so that it is saved. A page that was loaded during the run gets no
   * updates of the output from the kernel.
   */
  private keep(bundle: Bundle): void {
    if (this.model && !isOver(this.model.data)) this.store(bundle);
  }

  private store(bundle: Bundle): void {
    this.model?.setData({ data: bundle as IRenderMime.IMimeModel["data"], metadata: this.model.metadata });
  }

  private makeRun(): Drawn {
    const target = (): Target => ({
      turn: this.shownId,
      run: this.state && !isSweep(this.state) ? `${this.state.session}/${this.state.turn}` : "",
      kernel: this.app.kernelOf(this.node),
    });
    return makeLivePanel(this.life.signal, makeRequests(target, this.app.api, (problem) => this.report(problem)));
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
   * Run the action of a card's button in place, instead of with a new cell. In an untrusted notebook, a cell
   * is added for the user to read and run, because nothing may run in a kernel with a single click.
   */
  private press(event: MouseEvent): void {
    if (this.openFile(event)) return;
    const point = pointOf((event.target as Element).closest("[data-point]"));
    if (point && (this.panel || this.back.parentNode)) {
      void this.goBack(point);
      return;
    }
    const button = (event.target as Element).closest<HTMLButtonElement>(`[${LINKED}]`);
    // If a widget is drawn, the server does not know the turn and could not resume it.
    if (!button || button.closest(".nba-widget")) return;
    const hasKernel = this.app.kernelOf(this.node) !== undefined;
    const isRow = button.closest(".opened") !== null;
    const isOurs = button.value === "resume" && !isRow && this.notebook() !== "";
    if (hasKernel && this.model?.trusted && !isOurs) return;
    event.stopPropagation(); // before JupyterLab adds a cell, possibly to another notebook
    if (hasKernel && !this.model?.trusted) this.app.addCell(sourceOf(button));
    else if (isOurs) void this.resume(button);
    else if (button.value === "continue") this.app.continue_(this.pressed(isRow));
    else this.app.resume(this.pressed(isRow));
  }

  private async goBack(point: string): Promise<void> {
    const [turn, event] = point.split(":");
    await this.app.rewind(this.turn().replace(/turn_[0-9]+$/, `turn_${turn}`), Number(event));
    // It may have been redrawn behind the dialog, which then can't restore the focus.
    if (document.activeElement === document.body) focusPoint(this.node, point);
  }

  private pressed(isRow: boolean): string {
    return isRow ? (this.panel?.opened?.() ?? "") : this.shownId;
  }

  /** Resume the turn in this output, or with a new cell if the server can't access the turn. */
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

  /** Replace this turn by another one, and save it with the notebook. */
  private async replace(bundle: Bundle): Promise<void> {
    if (!this.model || this.isDisposed) return;
    this.model.setData({ data: bundle as IRenderMime.IMimeModel["data"], metadata: this.model.metadata });
    await this.renderModel(this.model);
  }

  /** Open a file of a workspace, or the list of files, here instead of in another browser tab. */
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

/** Keep the open and closed parts when another card replaces a card. */
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

/** Return the source of the cell that a card's button adds. */
function sourceOf(button: HTMLElement): string {
  try {
    const linked = JSON.parse(button.getAttribute(LINKED_ARGS) ?? "") as { args: { text: unknown } };
    return String(linked.args.text);
  } catch {
    return ""; // HTML of another origin
  }
}

/** Return the source of a card: its HTML, with a mark if it is trusted. */
function textOf(bundle: Bundle, trusted: boolean): string {
  return `${trusted} ${String(bundle["text/html"] ?? "")}`;
}

function isOver(bundle: Bundle): boolean {
  const status = statusOf(bundle);
  return status !== undefined && isFinal(status);
}
