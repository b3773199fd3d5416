/**
 * The parts of the widget model and of JupyterLab's kernel connection that the panel uses.
 * Every part of `kernel` is optional, because other front ends do not have all of it.
 */

export interface PanelModel {
  get(name: "state"): unknown;
  send(content: unknown): void;
  on(event: string, callback: (content?: unknown) => void): void;
  off(event: string, callback: (content?: unknown) => void): void;
  readonly widget_manager?: unknown;
}

export interface ControlFuture {
  readonly done?: Promise<unknown>;
}

/** Lumino's signal. */
interface Signal<Args extends unknown[]> {
  connect(slot: (...args: Args) => void): unknown;
  disconnect(slot: (...args: Args) => void): unknown;
}

export interface Kernel {
  readonly clientId?: string;
  readonly username?: string;
  sendControlMessage?(msg: unknown, expectReply: boolean, disposeOnDone: boolean): ControlFuture | undefined;
  readonly statusChanged?: Signal<[sender: unknown, status: string]>;
  /** JupyterLab 4.6 shuts a kernel down without a status: only the connection is disposed. */
  readonly disposed?: Signal<[sender: unknown]>;
}

const GONE: ReadonlySet<string> = new Set(["restarting", "autorestarting", "terminating", "dead"]);

export function kernelOf(model: PanelModel): Kernel | undefined {
  return (model.widget_manager as { kernel?: Kernel | null } | null | undefined)?.kernel ?? undefined;
}

/**
 * Call `callback` when the kernel that owns the model has ended.
 *
 * After the first draw, `comm_live_update` is fired only when a live comm is lost
 * (jupyterlab_widgets 3.0: `WidgetManager.disconnect`).
 */
export function onKernelGone(model: PanelModel, life: AbortSignal, callback: () => void): void {
  const onStatus = (_sender: unknown, status: string): void => {
    if (GONE.has(status)) callback();
  };
  const kernel = kernelOf(model);
  kernel?.statusChanged?.connect(onStatus);
  kernel?.disposed?.connect(callback);
  model.on("comm_live_update", callback);
  life.addEventListener("abort", () => {
    kernel?.statusChanged?.disconnect(onStatus);
    kernel?.disposed?.disconnect(callback);
    model.off("comm_live_update", callback);
  });
}

/** A random id. `crypto.randomUUID` exists only on https and localhost. */
export function newId(): string {
  if (typeof globalThis.crypto?.randomUUID === "function") return crypto.randomUUID();
  const hex = (): string => Math.floor(Math.random() * 2 ** 32).toString(16).padStart(8, "0");
  return hex() + hex() + hex() + hex();
}
