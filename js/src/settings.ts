/** The user's settings of the extension, from JupyterLab's settings editor. Without it, the defaults apply. */

import type { ISettingRegistry } from "@jupyterlab/settingregistry";

export interface Settings {
  /** How the page's buttons, commands and shortcuts stop a run at first. */
  readonly stopLevel: "graceful" | "immediate";
  /** Which changes of runs out of sight are notified. */
  readonly notifications: "all" | "waiting" | "none";
  /** Maximum number of rows that the panel of a sweep lists. */
  readonly rowLimit: number;
}

export const DEFAULTS: Settings = { stopLevel: "graceful", notifications: "all", rowLimit: 100 };

let current = DEFAULTS;

/** The current settings. */
export function settings(): Settings {
  return current;
}

/** Use other settings from now on. Invalid values are replaced by the defaults. */
export function setSettings(values: unknown): void {
  const given = (values ?? {}) as Partial<Record<keyof Settings, unknown>>;
  const { stopLevel, notifications, rowLimit } = given;
  current = {
    stopLevel: stopLevel === "immediate" ? stopLevel : DEFAULTS.stopLevel,
    notifications: notifications === "waiting" || notifications === "none" ? notifications : DEFAULTS.notifications,
    rowLimit: Number.isInteger(rowLimit) && Number(rowLimit) > 0 ? Number(rowLimit) : DEFAULTS.rowLimit,
  };
}

/** Load a plugin's settings, and follow their changes. */
export async function followSettings(registry: ISettingRegistry, plugin: string): Promise<void> {
  const loaded = await registry.load(plugin);
  const take = (): void => setSettings(loaded.composite);
  loaded.changed.connect(take);
  take();
}
