/**
 * Runs cells of a notebook for agents, behind the user's own cells.
 *
 * A cell is sent to the kernel only after the server has recorded its start. So no other page runs it, and it does
 * not run after a stop. A stop interrupts the kernel only while it runs a cell that was started here.
 */

import type { Cell, CodeCell } from "@jupyterlab/cells";
import type { INotebookCellExecutor, NotebookPanel } from "@jupyterlab/notebook";
import type { Kernel, KernelMessage } from "@jupyterlab/services";
import { isAllowed } from "./cell-changes";
import { imagesOf, outputText } from "./cell-outputs";
import { pageName } from "./page-name";

/** A request to run a cell, as in `nb_agents/extensions/notebook_cells/cell_views.py`. */
export interface RunPart {
  readonly number: number;
  /** The page that has taken the request, or "". */
  readonly page: string;
  readonly started: boolean;
}

/** The cell of a request, and the source that the user has approved. */
export interface WantedRun {
  readonly number: number;
  readonly cell: string;
  readonly source: string;
  /** Whether the agent also gets the images in the outputs. */
  readonly images?: boolean;
}

export interface RunsApi {
  /** List the open requests of the turn. */
  wanted(): Promise<readonly WantedRun[]>;
  /** Record a step. Resolves to whether it was recorded. */
  record(body: object): Promise<boolean>;
  /** Report the end of a run, also if the server is restarted meanwhile. */
  end(body: object): Promise<void>;
}

/** The requests of one turn. */
export class CellRuns {
  /** The requests that this page has seen, and whether a stop ended them. */
  private readonly taken = new Map<number, AbortController>();

  constructor(
    private readonly panel: NotebookPanel,
    /** The cell that shows the turn. */
    private readonly shown: string,
    private readonly api: RunsApi,
    private readonly executor: INotebookCellExecutor | null,
  ) {}

  /**
   * Take the open requests. Those that are no longer open are withdrawn, or interrupted.
   *
   * @param isLive Whether the requests are from the server. After a stop, the page may get only the turn's card.
   */
  take(runs: readonly RunPart[], isLive: boolean): void {
    const open = new Set(runs.map(({ number }) => number));
    for (const [number, stop] of this.taken) if (!open.has(number)) stop.abort();
    for (const run of isLive ? runs : []) {
      if (this.taken.has(run.number) || (run.page !== "" && run.page !== pageName())) continue;
      const stop = new AbortController();
      this.taken.set(run.number, stop);
      void this.handle(run, stop.signal);
    }
  }

  private async handle({ number, page, started }: RunPart, stop: AbortSignal): Promise<void> {
    const end = (how: string, outputs = "", images = ""): Promise<void> =>
      this.api.end({ number, step: "end", how, outputs, ...(images ? { images } : {}) });
    if (started) {
      await end("lost"); // this page was reloaded while the cell ran
      return;
    }
    if (!page && !(await this.api.record({ number, step: "queue", page: pageName(), behind: this.behind() }))) return;
    const wanted = (await this.api.wanted()).find((each) => each.number === number);
    if (!wanted || stop.aborted) return;
    const isBlocked = (): boolean => this.isRunning(this.shown);
    if (isBlocked()) {
      await end("deadlock");
      return;
    }
    if (!(await this.untilIdle(stop))) return;
    const problem = this.problemOf(wanted);
    if (problem) await end(problem);
    else if (await this.api.record({ number, step: "start", page: pageName() })) {
      if (stop.aborted) return; // the turn has ended meanwhile, and reports the cell as cut
      const changed = this.problemOf(wanted); // typed meanwhile
      const { how, outputs, images } = changed ? { how: changed, outputs: "", images: "" } : await this.run(wanted, stop);
      await end(how, outputs, images);
    }
  }

  private problemOf({ cell: id, source }: WantedRun): string {
    const cell = this.cell(id);
    if (!cell) return "missing";
    const shared = cell.model.sharedModel;
    if (shared.getSource() !== source || cell.model.type !== "code") return "changed";
    return isAllowed(shared, "run") && this.executor && this.kernel ? "" : "refused";
  }

  private async run(wanted: WantedRun, stop: AbortSignal): Promise<{ how: string; outputs: string; images: string }> {
    const cell = this.cell(wanted.cell) as CodeCell;
    const { panel } = this;
    const life = new AbortController();
    const interrupt = interrupter(this.kernel!, () => cell.outputArea.future?.msg.header.msg_id, life.signal);
    stop.addEventListener("abort", interrupt, { signal: life.signal });
    let isRun = false;
    try {
      isRun = await this.executor!.runCell({
        cell,
        notebook: panel.content.model!,
        notebookConfig: panel.content.notebookConfig,
        onCellExecuted: () => {},
        onCellExecutionScheduled: () => {},
        sessionContext: panel.sessionContext,
      });
    } catch {
      isRun = !cell.isDisposed; // the cell raised an error
    } finally {
      life.abort();
    }
    if (cell.isDisposed || !this.kernel) return { how: "lost", outputs: "", images: "" };
    const outputs = cell.model.outputs.toJSON();
    const hasError = outputs.some(({ output_type }) => output_type === "error");
    const found = wanted.images ? imagesOf([[wanted.cell, outputs as never]]) : [];
    const images = found.length ? JSON.stringify(found) : "";
    return { how: hasError ? "error" : isRun ? "ok" : "aborted", outputs: outputText(outputs as never), images };
  }

  /** Wait until the kernel is idle, and no cell of the user waits for it. */
  private async untilIdle(stop: AbortSignal): Promise<boolean> {
    const { sessionContext } = this.panel;
    while (!this.isIdle() && !stop.aborted && !this.panel.isDisposed) {
      await new Promise<void>((resolve) => {
        const go = (): void => {
          sessionContext.statusChanged.disconnect(go);
          stop.removeEventListener("abort", go);
          this.panel.disposed.disconnect(go);
          setTimeout(resolve); // after the cells have taken the new status
        };
        sessionContext.statusChanged.connect(go);
        stop.addEventListener("abort", go);
        this.panel.disposed.connect(go);
      });
    }
    return !stop.aborted && !this.panel.isDisposed;
  }

  private isIdle(): boolean {
    const { sessionContext, content } = this.panel;
    const isQueued = content.widgets.some(({ model }) => model && this.isRunning(model.id));
    return this.kernel?.status === "idle" && !sessionContext.pendingInput && !isQueued;
  }

  /** Return whether a cell runs, or waits for the kernel. */
  private isRunning(id: string): boolean {
    const model = this.cell(id)?.model as Partial<CodeCell["model"]> | undefined;
    return model?.executionState === "running";
  }

  /** Name the cell that the kernel runs now, or "". */
  private behind(): string {
    if (this.kernel?.status !== "busy") return "";
    const running = this.panel.content.widgets.findIndex(({ model }) => this.isRunning(model.id));
    return running < 0 ? "other code" : `cell ${running + 1}`;
  }

  private cell(id: string): Cell | undefined {
    return this.panel.content.widgets.find(({ model }) => model.id === id);
  }

  private get kernel(): Kernel.IKernelConnection | null {
    return this.panel.sessionContext.session?.kernel ?? null;
  }
}

/**
 * Return a function that interrupts the kernel while it runs a request.
 *
 * If the kernel runs something else, the function waits for the request to begin.
 *
 * @param request Returns the id of the request's message, once it is known.
 * @param life Ends when the request has ended.
 */
function interrupter(kernel: Kernel.IKernelConnection, request: () => string | undefined, life: AbortSignal): () => void {
  let isRunning = false;
  let isWanted = false;
  const check = (): void => {
    if (!isWanted || !isRunning) return;
    isWanted = false;
    void kernel.interrupt();
  };
  const listen = (_: unknown, message: KernelMessage.IIOPubMessage): void => {
    if (message.header.msg_type !== "status") return;
    const { execution_state } = message.content as KernelMessage.IStatusMsg["content"];
    const parent = (message.parent_header as { readonly msg_id?: string }).msg_id ?? "";
    // A kernel answers other requests while the cell runs, such as a stop on its control channel.
    if (parent !== "" && parent === request()) isRunning = execution_state === "busy";
    check();
  };
  kernel.iopubMessage.connect(listen);
  life.addEventListener("abort", () => kernel.iopubMessage.disconnect(listen));
  return () => {
    isWanted = true;
    check();
  };
}
