"""HTML pages and tables for people: the dashboard of a workload, statistics and previews of tables and datasets, two releases'
answers side by side, the difference of two versions of a dataset. Everything is read from tables, manifests and logs;
nothing is measured here. The report and the approval page of a release are in releasing/. Start with dashboard.py."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from resources.reporting.dashboard import dashboard_path, write_dashboard
    from resources.reporting.data_report import PEOPLE, column_statistics, files_relation, rows_without_texts, write_data_report
    from resources.reporting.dataset_diff import CURRENT, PREVIOUS, DiffError, compare_versions, diff_summary, version_named
    from resources.reporting.side_by_side import answers_side_by_side, pairs_as_html

__getattr__, __dir__, __all__ = door(__name__, __file__)
